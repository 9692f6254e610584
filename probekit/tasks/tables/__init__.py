"""Tables of texts and labels: files, datasets of the Hub and Python objects, and their columns and rows."""
