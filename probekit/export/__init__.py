"""Fitted probes and curves as files of other programs."""
