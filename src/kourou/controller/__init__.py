"""The controller: registers the replicas of broker sets and elects their masters."""
