"""All kinds of messages at once, with a real broker that is killed every few seconds.

`ledger` and `pop_ledger` record acknowledged and delivered messages, `senders` and `payer` send,
`consumers` consume, `poppers` starts and kills the processes of `popper`, which consume by pop,
some of them in order, `recreated` deletes topics and creates them again, `clocks` changes the
broker's clock, `judging` and `ordered_pops` compare, `keeping` keeps the files of a failed run, and
`run` kills the broker. `lost_acks` proves that the judge finds lost acknowledgements, and `modes`
changes the mode of a group of `mode_member` processes.
"""
