"""A probe for each place in the text: which texts have it, the fits, the comparison with chance, and the results."""
