"""Book the payments of each account in the order in which they were made, until Ctrl-C or SIGTERM.

First, three payments are sent for each of two accounts. The account's name is the sharding key, so
all payments of one account are in one queue. This consumer locks the queue and delivers its
messages one after the other. The second payment of alice is refused once; it is delivered again
before her third one.
Requires `kourou serve` or RocketMQ, on localhost unless NAMESRV_ADDR names another address.
"""

from __future__ import annotations

from kourou import (
    AdminClient,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    RetryLater,
    run,
)


async def book(message: MessageExt) -> None:
    """Book one payment; after an exception the queue waits, and the payment is delivered again."""
    account, amount = message.keys[0], message.body.decode()
    if (account, amount) == ("alice", "20 eur") and message.reconsume_times == 0:
        print("refused", account, amount, flush=True)
        raise RetryLater("the ledger is closed", delay_ms=500)
    print("booked", account, amount, flush=True)


async def pay() -> None:
    """Create the topic, so that its number of queues does not change, and send the payments."""
    async with AdminClient() as admin:
        await admin.create_topic("Payments", queues=4)
    async with Producer("tellers") as producer:
        for number in range(1, 4):
            for account in ("alice", "bob"):
                payment = Message("Payments", b"%d0 eur" % number, keys=[account])
                await producer.send(payment, sharding_key=account)


async def main() -> None:
    """Send payments, and book them until a signal; then close cleanly and commit the offsets."""
    await pay()
    consumer = PushConsumer("ledger", start="earliest")
    consumer.subscribe("Payments")
    consumer.listen_orderly(book)
    async with consumer:
        await consumer.run_forever()


run(main())
