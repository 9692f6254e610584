"""What an extraction will do: which texts, tokens, places and blocks."""
