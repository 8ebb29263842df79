"""Message filters by tag and by SQL92 property expression, and Bloom filter bit maps; no I/O."""
