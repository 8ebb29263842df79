"""Statistics: the broker's counters, their samples, and the formats in which they are reported."""
