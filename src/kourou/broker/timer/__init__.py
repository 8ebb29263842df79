"""Messages that are delivered at a time: placing, waiting, delivery, recall."""
