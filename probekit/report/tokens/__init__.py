"""The token by layer view: the score of every token of some texts at every layer."""
