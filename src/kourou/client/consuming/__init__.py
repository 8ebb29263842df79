"""Consuming: push and pull consumers, and what they hold, deliver, acknowledge and tell."""
