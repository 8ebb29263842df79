"""From a record to the disk: what is put where, written, synced, indexed, and expired."""
