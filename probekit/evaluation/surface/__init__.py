"""Surface controls: what nuisance columns alone give, the curve without them, and shifts from one value to another."""
