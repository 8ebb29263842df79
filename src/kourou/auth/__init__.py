"""Who a client is, and the signature by which its requests prove it."""
