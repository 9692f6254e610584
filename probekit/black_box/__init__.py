"""What a probe is compared with that is no probe: a prompted model, and cascades of a probe and a judge."""
