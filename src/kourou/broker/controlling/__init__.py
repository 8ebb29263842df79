"""A broker whose role a controller decides: its identity, its registration, its changes of role."""
