"""The nouns of the message system as plain values; no bytes on a wire, no I/O."""
