"""The machine: devices, number types, threads, progress, signals, versions."""
