"""What ends a delivery: done, again later, or a dead letter."""
