"""The key index: messages by key, unique id and tag."""
