"""The write path: placement, group commit, syncs, key index, and expiry of messages."""
