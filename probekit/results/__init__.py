"""Results on disk: the kinds there are, the one table of all of them, and how their files are replaced and read."""
