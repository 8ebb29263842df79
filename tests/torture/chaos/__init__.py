"""All kinds of messages at once, under a real broker that is killed every few seconds.

`ledger` holds what was promised and what came, `senders` and `payer` send, `consumers` take,
`remade` deletes topics and creates them again, `clocks` sets the broker's clock, `judging`
compares, and `run` kills.
"""
