"""Polls and reads of a pull consumer: what it holds of its queues, and gives when asked."""
