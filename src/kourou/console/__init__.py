"""Read-only HTTP endpoint of a running process for monitoring systems."""
