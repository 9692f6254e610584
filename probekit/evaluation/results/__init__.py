"""Results: the data, their files, their tables, and where they come from."""
