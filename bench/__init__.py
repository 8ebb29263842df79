"""Benchmarks: one module a question; each answer is a ratio against a peer in the same run."""
