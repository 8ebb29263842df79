"""The name server: registry of the live brokers and of the topics that each of them serves."""
