"""Scheduled messages: the files of RocketMQ's timer, in which they wait until they are due."""
