"""Charge each order once, even if its message is delivered twice, until Ctrl-C or SIGTERM.

The listener's writes and the entry of the processed message are one transaction of one SQLite file.
Requires `kourou serve` or RocketMQ, on localhost unless NAMESRV_ADDR names another address.
"""

from __future__ import annotations

import os
import sqlite3

from kourou import (
    Idempotent,
    MessageExt,
    PushConsumer,
    SeenInSqlite,
    by_key,
    run,
)

DATABASE = os.environ.get("CHARGES_DB", "charges.db")


def charge(message: MessageExt, db: sqlite3.Connection) -> None:
    """Write one charge; it is committed with the entry of the message after this returns."""
    db.execute("CREATE TABLE IF NOT EXISTS charges (order_id TEXT, body TEXT)")
    db.execute("INSERT INTO charges VALUES (?, ?)", (message.keys[0], message.body.decode()))
    print("charge", message.keys[0], flush=True)


consumer = PushConsumer("charging", start="earliest")
consumer.subscribe("orders")
consumer.listen(Idempotent(charge, seen=SeenInSqlite(DATABASE), identity=by_key))
run(consumer)
