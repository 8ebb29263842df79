"""Push and pull consumers: membership, pulling, delivery, acknowledgement, statistics."""
