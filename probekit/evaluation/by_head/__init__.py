"""A probe for each attention head at every layer; the grid is that of `by_position`."""
