"""Send requests: validation, the fast paths, and conversion into commit-log records."""
