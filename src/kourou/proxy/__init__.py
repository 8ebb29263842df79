"""gRPC proxy: serves RocketMQ's 5.x clients."""
