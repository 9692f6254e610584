"""Which tokens of each text are read, and how that is shown."""
