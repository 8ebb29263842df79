"""How far a group is: at its brokers, in a file of its own, or where a new one starts."""
