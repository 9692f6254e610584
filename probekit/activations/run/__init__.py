"""Run the model over the blocks of a plan."""
