"""Send orders, and record each send in a ledger, so that the audit can prove that none is lost.

The ledger is a topic of its own. It has the unique id, position, times and outcome of each try.
Afterwards compare it with what the broker holds and what the group `billing` has acknowledged:

    python examples/recorded_orders.py
    kourou pipeline audit orders --ledger order-ledger --group billing
"""

from kourou import Message, SendLedger
from kourou.blocking import Producer

ledger = SendLedger("order-ledger")
with Producer("shop", hooks=[ledger]) as producer:
    for number in range(1, 4):
        message = Message("orders", b'{"id": %d}' % number, keys=[f"o-{number}"])
        receipt = producer.send(message, sharding_key="customer-7")
        print(f"o-{number} is at {receipt.queue.queue_id}@{receipt.queue_offset}")
print(f"recorded by {ledger.run}, {ledger.dropped} entries dropped")
