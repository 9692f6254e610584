"""What a model answers: answers, minimal pairs, and measures of them."""
