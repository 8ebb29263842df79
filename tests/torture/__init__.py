"""Thousands of injected faults in stores and brokers: `python -m tests.torture`, `make torture`."""
