"""Reads of queues: selects messages, verifies their records, and repairs queue entries."""
