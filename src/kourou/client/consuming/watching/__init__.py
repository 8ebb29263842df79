"""Observation of consumers by programs and administrators: hooks, traces, statistics, settings."""
