"""Recovery: finds the log's end after a stop or a crash and makes the queues agree with it."""
