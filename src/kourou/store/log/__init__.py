"""The commit log: its files and records, and scans that continue after damaged records."""
