"""What programs and administrators are told: hooks, traces, statistics, settings."""
