"""Requests between brokers, controllers and tools: replicas, their sets in sync, and elections."""
