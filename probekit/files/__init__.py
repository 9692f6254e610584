"""Files here and in object stores: durable writes, records, scratch folders, downloads."""
