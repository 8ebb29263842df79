"""State of consumer groups at the broker: offsets, queue locks, assignment, retries."""
