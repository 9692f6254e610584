"""Apply fitted probes to new texts, and to texts while the model writes them."""
