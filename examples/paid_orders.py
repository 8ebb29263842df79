"""Tells others that an order is paid if, and only if, the payment is in the database.

The message is stored first, where no consumer sees it. Then the payment is written under the id of
the order, and the message is committed. If this program dies in between, the broker asks the next
one that runs, which looks for the order in the database.

The key of the table is the order's own id, not that of the message or transaction: those name a
message while it is stored, an order's id names the order for good. An order is paid once, however
often this program is started.

    PAYMENTS_DB=payments.db python examples/paid_orders.py
"""

import os
import sqlite3

from kourou import Message, MessageExt, Transaction, TransactionState
from kourou.blocking import TransactionProducer

DATABASE = os.environ.get("PAYMENTS_DB", "payments.db")


def open_database() -> sqlite3.Connection:
    """Return a connection of this thread's own."""
    connection = sqlite3.connect(DATABASE)
    connection.execute("CREATE TABLE IF NOT EXISTS payment (order_id PRIMARY KEY, eur)")
    return connection


def pay(transaction: Transaction) -> TransactionState:
    """Write the payment; an order that is paid already is not paid again, nor told again."""
    order, eur = transaction.message.keys[0], int(transaction.message.body)
    if eur <= 0:
        return TransactionState.ROLLBACK
    with open_database() as connection:
        written = connection.execute("INSERT OR IGNORE INTO payment VALUES (?, ?)", (order, eur))
    return TransactionState.COMMIT if written.rowcount else TransactionState.ROLLBACK


def was_paid(message: MessageExt) -> TransactionState:
    """Say what became of a transaction whose end the broker does not know."""
    with open_database() as connection:
        found = connection.execute(
            "SELECT 1 FROM payment WHERE order_id = ?", (message.keys[0],)
        ).fetchone()
    return TransactionState.COMMIT if found else TransactionState.ROLLBACK


with TransactionProducer("payments", check=was_paid) as producer:
    for order, eur in (("o-17", 120), ("o-18", 0)):
        message = Message("OrderPaid", b"%d" % eur, keys=[order])
        receipt = producer.send_in_transaction(message, pay)
        print(order, receipt.state.name, "confirmed" if receipt.is_confirmed else "to be asked")
