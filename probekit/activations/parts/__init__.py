"""An extraction in parts: how its shards are cut into parts, and how each part is done, joined and counted."""
