"""The published test kit: simulated time, disk and network, and clusters that run on them."""
