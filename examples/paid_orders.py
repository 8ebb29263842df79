"""Send a message about a paid order if, and only if, the payment is in the database.

The half message is stored first, invisible to consumers. Then the payment is written with the id of
the order as its key, and the message is committed. If this program dies in between, the broker
sends a check to the next run of it, which looks for the order in the database.

The key of the table is the id of the order, not of the message or transaction: a second run of this
program creates new messages, but the order's id stays the same. An order is paid once, however
often this program is started.

    PAYMENTS_DB=payments.db python examples/paid_orders.py
"""

import os
import sqlite3

from kourou import Message, MessageExt, Transaction, TransactionState
from kourou.blocking import TransactionProducer

DATABASE = os.environ.get("PAYMENTS_DB", "payments.db")


def open_database() -> sqlite3.Connection:
    """Return a new connection, since connections cannot be shared between threads."""
    connection = sqlite3.connect(DATABASE)
    connection.execute("CREATE TABLE IF NOT EXISTS payment (order_id PRIMARY KEY, eur)")
    return connection


def pay(transaction: Transaction) -> TransactionState:
    """Write the payment; an order that is already paid causes neither a payment nor a message."""
    order, eur = transaction.message.keys[0], int(transaction.message.body)
    if eur <= 0:
        return TransactionState.ROLLBACK
    with open_database() as connection:
        written = connection.execute("INSERT OR IGNORE INTO payment VALUES (?, ?)", (order, eur))
    return TransactionState.COMMIT if written.rowcount else TransactionState.ROLLBACK


def was_paid(message: MessageExt) -> TransactionState:
    """Return the outcome of a transaction whose end the broker has not received."""
    with open_database() as connection:
        found = connection.execute(
            "SELECT 1 FROM payment WHERE order_id = ?", (message.keys[0],)
        ).fetchone()
    return TransactionState.COMMIT if found else TransactionState.ROLLBACK


with TransactionProducer("payments", check=was_paid) as producer:
    for order, eur in (("o-17", 120), ("o-18", 0)):
        message = Message("OrderPaid", b"%d" % eur, keys=[order])
        receipt = producer.send_in_transaction(message, pay)
        print(order, receipt.state.name, "confirmed" if receipt.is_confirmed else "to be checked")
