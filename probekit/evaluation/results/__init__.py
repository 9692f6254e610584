"""Results of training: numbers, files and text."""
