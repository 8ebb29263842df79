"""Persistent state of a store beside its messages: checkpoint, abort file, config files, sizes."""
