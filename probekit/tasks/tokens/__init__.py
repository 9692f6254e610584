"""Labels of tokens: the forms in which they are given, and the rows that they make."""
