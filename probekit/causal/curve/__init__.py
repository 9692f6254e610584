"""The causal curve: every edit at every place, and what it does to the behaviour."""
