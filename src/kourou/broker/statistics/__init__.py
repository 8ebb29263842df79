"""Statistics: what the broker counts, and how it tells."""
