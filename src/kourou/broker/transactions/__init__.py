"""Transactions: half messages, their commits and rollbacks, and checks of those still open."""
