"""What a store remembers about itself and its broker, beside messages."""
