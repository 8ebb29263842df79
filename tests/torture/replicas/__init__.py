"""Replicas in controller mode as real processes: killed, stopped, and cut off from each other."""
