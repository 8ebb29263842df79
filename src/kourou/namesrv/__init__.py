"""The name server: which brokers there are, and which of them serve a topic."""
