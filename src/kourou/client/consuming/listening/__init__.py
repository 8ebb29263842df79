"""Delivery of messages to listeners and loops, concurrently or in order."""
