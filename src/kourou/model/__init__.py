"""Domain model: messages, queues, topics, groups and routes as plain values; no codecs, no I/O."""
