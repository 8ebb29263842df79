"""Transactions: half messages, how they end, and the check of those whose producers fell silent."""
