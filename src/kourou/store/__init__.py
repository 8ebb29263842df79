"""The storage engine for RocketMQ's files: synchronous, without network, threads or clock."""
