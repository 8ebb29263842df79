"""Administration: describe and change a cluster."""
