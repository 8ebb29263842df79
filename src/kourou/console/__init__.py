"""What a monitor reads of a running process by HTTP. Writes nothing, changes nothing."""
