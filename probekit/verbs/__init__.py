"""The public functions that choose who does the work: this process, devices, or a Ray cluster."""
