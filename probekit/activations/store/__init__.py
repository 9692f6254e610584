"""Activations on disk: immutable shards, one small record each, the manifest last.

STORE/plan.json                    the settings that decide the bits, and the source of the model
      examples.json                what all examples have in common, and the names of the pieces
      examples/<sha256>.parquet    pieces: inputs (spans, targets), labels, splits, ids, positions, lengths
      shards/<sha256>.safetensors  rows of every place, named by their content
      records/00000.json           a shard's rows and file, and the checksum of each tensor
      labels/<name's checksum>.json  labels that were joined later, and labels/splits.json, the splits made with them
      manifest.json                provenance; written when the store is complete

A shard is on disk before its record, and every record before the manifest (`durable` has the order of each write).
Plan and examples are written before the first shard, so that every other file can be made again (`repair`). Readers
trust records only, and use read(2) instead of mapping files: a mapped file that is truncated kills the process. JSON
files carry a checksum of themselves; the manifest holds the checksums of all others, and examples.json of its pieces.
Labels may be joined at any time, so no other file names theirs: they name the checksum of examples.json.
"""
