"""Results in experiment trackers, where one is installed."""
