"""Score new texts with a fitted probe: probabilities, thresholds, distances from the training activations."""
