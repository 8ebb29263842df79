"""The storage engine: RocketMQ's files, synchronous, without network, threads or clock."""
