"""Administration: requests by which operators inspect and change a broker."""
