"""A member of a group: what it subscribes, its share of the queues, and their locks."""
