"""Which messages a subscription takes; pure decisions over tags."""
