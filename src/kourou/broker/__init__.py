"""The broker: accepts messages, stores them durably, and delivers them to consumers.

`server.py` starts and stops the components; no component imports it. `components.py` builds the
components, `wiring.py` builds the request handlers on top of them, and `handlers.py` maps request
codes to handlers. `context.py` holds what most packages share. `writing/group_commit.py` holds the
order in which a message is written, synced, made visible to consumers, and acknowledged.
"""
