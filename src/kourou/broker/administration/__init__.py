"""Administration: what operators ask of a broker and change in it."""
