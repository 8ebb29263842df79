"""Administration: what operators ask of a cluster and change in it."""
