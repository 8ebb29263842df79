"""Sends, plain ones and all others: what is checked, and which record a request becomes."""
