"""Directions in activation space: fitted ones, placebos, angles, steering vectors, export."""
