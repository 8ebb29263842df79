"""Key index: finds messages by key, unique id or tag."""
