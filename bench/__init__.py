"""Benchmarks: one module per question; each result is a ratio against a peer in the same run."""
