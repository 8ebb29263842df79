"""Faults done to stores and brokers by the thousand: `python -m tests.torture`, `make torture`."""
