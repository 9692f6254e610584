"""Plan an extraction: which texts, tokens, places and blocks."""
