"""Listeners and loops: who is called with which message, many at a time or in order."""
