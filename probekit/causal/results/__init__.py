"""Causal results: their files, tables, reports, and the reviewer's checklist."""
