"""Sending: producers, and what decides where, when and how often a message goes."""
