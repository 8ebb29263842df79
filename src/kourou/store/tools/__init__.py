"""Tools for a store directory: inspect, check, repair, export and import; most need it closed."""
