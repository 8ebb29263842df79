"""Supervision of the processes of a cluster on one machine."""
