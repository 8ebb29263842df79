"""Fuzzer for every decoder: `python -m tests.fuzz --seconds 60 [--seed 7]`."""
