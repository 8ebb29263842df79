"""The broker: takes messages, keeps them durably, and hands them to consumers.

`server.py` starts and stops the parts and is known by none of them; `parts.py` makes the parts,
`wiring.py` joins the handlers of requests to them, and `handlers.py` says which handler serves
which request; `group_commit.py` holds the order in which a message is written, synced, shown to
consumers and acknowledged.
"""
