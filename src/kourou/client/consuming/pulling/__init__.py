"""Pulls of a push consumer: the queues it holds, their messages, and what holds pulls back."""
