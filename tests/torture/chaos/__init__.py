"""All kinds of messages at once, with a real broker that is killed every few seconds.

`ledger` records acknowledged and delivered messages, `senders` and `payer` send, `consumers`
consume, `recreated` deletes topics and creates them again, `clocks` changes the broker's clock,
`judging` compares, and `run` kills the broker.
"""
