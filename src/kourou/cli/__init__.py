"""The command line: `kourou serve`, and commands to send, receive and look."""
