"""Tells others that an order is paid if, and only if, the payment is in the database.

The message is stored first, where nobody sees it. Then the payment is written, with the id of the
transaction, and the message is committed. If this program dies in between, the broker asks the
next one that runs, which looks for the id in the database.

    PAYMENTS_DB=payments.db python examples/paid_orders.py
"""

import os
import sqlite3

from kourou import Message, MessageExt, Transaction, TransactionState
from kourou.blocking import TransactionProducer

NAMESRV = os.environ.get("NAMESRV_ADDR", "localhost:9876")
DATABASE = os.environ.get("PAYMENTS_DB", "payments.db")


def open_database() -> sqlite3.Connection:
    """Return a connection of this thread's own."""
    connection = sqlite3.connect(DATABASE)
    connection.execute("CREATE TABLE IF NOT EXISTS payment (transaction_id PRIMARY KEY, eur)")
    return connection


def pay(transaction: Transaction) -> TransactionState:
    """Write the payment, and with it the id by which it is found again."""
    eur = int(transaction.message.body)
    if eur <= 0:
        return TransactionState.ROLLBACK
    with open_database() as connection:
        connection.execute("INSERT INTO payment VALUES (?, ?)", (transaction.id, eur))
    return TransactionState.COMMIT


def was_paid(message: MessageExt) -> TransactionState:
    """Say what became of a transaction about which the broker heard nothing."""
    with open_database() as connection:
        found = connection.execute(
            "SELECT 1 FROM payment WHERE transaction_id = ?", (message.msg_id,)
        ).fetchone()
    return TransactionState.COMMIT if found else TransactionState.ROLLBACK


with TransactionProducer("payments", NAMESRV, check=was_paid) as producer:
    for order, eur in (("o-17", 120), ("o-18", 0)):
        message = Message("OrderPaid", b"%d" % eur, keys=[order])
        receipt = producer.send_in_transaction(message, pay)
        print(order, receipt.state.name, "confirmed" if receipt.is_confirmed else "to be asked")
