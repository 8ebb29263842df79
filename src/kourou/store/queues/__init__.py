"""The consume queues of all kinds: indexes from queue offsets to positions in the commit log."""
