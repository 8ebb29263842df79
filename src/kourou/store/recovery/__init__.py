"""Recovery: where the log ends after a stop or a crash, and queues that agree with it."""
