"""Messages to be delivered at a time: where they wait, in the files of RocketMQ's timer."""
