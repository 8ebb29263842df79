"""The consume queues: what each message of a topic is found by, in every kind there is."""
