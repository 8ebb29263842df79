"""What groups that consume leave at the broker: offsets, locks, shares of queues, retries."""
