"""The sections of the page: results in, `Section` out."""
