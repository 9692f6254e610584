"""Places in an object store, such as s3://bucket/folder, that are used as folders and files on disk are."""
