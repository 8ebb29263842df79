"""Pulls of a push consumer: held queues, their pulled messages, and flow control."""
