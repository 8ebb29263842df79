"""Scheduled messages: placement, the timer wheel, delivery, recall."""
