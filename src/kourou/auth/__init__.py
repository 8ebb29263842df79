"""Client credentials and request signatures."""
