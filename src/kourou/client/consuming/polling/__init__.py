"""Polls and reads of a pull consumer: its queues, their messages, and queue callbacks."""
