"""The broker: takes messages, keeps them durably, and hands them to consumers.

`server.py` puts the parts together and is known by none of them; `handlers.py` says which part
serves which request; `group_commit.py` holds the order in which a message is written, synced, shown
to consumers and acknowledged.
"""
