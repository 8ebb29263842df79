"""Sending: producers, choice of queues, retries, batches, requests and transactions."""
