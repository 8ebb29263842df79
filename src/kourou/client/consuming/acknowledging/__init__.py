"""Results of a delivery: acknowledged, redelivered later, or stored as a dead letter."""
