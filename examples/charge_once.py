"""Charge each order once, even when its message is delivered twice, until Ctrl-C or SIGTERM.

What the listener writes and the record that it was handled are one transaction of one SQLite file.
Needs a running `kourou serve`, or any RocketMQ; NAMESRV_ADDR says where, unless it is here.
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
    """Note one charge; committed, with the record that it was made, when this returns."""
    db.execute("CREATE TABLE IF NOT EXISTS charges (order_id TEXT, body TEXT)")
    db.execute("INSERT INTO charges VALUES (?, ?)", (message.keys[0], message.body.decode()))
    print("charge", message.keys[0], flush=True)


consumer = PushConsumer("charging", start="earliest")
consumer.subscribe("orders")
consumer.listen(Idempotent(charge, seen=SeenInSqlite(DATABASE), identity=by_key))
run(consumer)
