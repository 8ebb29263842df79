"""Offsets of a group: stored at brokers or in a local file, and start offsets of new groups."""
