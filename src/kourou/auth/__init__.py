"""Credentials of a client, and the signature of its requests."""
