"""Stores and results on the Hugging Face Hub: what is uploaded, the card, and the push."""
