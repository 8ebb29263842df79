"""Pulls and queries: what a consumer may read, at once or when it has arrived."""
