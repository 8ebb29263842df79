"""Book the payments of each account in the order in which they were made, until Ctrl-C or SIGTERM.

Sends three payments of two accounts first. Those of one account have its name as sharding key, so
that they are in one queue, which this consumer has for itself, and gives out one after the other.
The second payment of alice is refused once: it comes again before her third one.
Needs a running `kourou serve`, or any RocketMQ; NAMESRV_ADDR says where, unless it is here.
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
    """Book one payment; raising has its queue wait, and the same payment given again."""
    account, amount = message.keys[0], message.body.decode()
    if (account, amount) == ("alice", "20 eur") and message.reconsume_times == 0:
        print("refused", account, amount, flush=True)
        raise RetryLater("the ledger is closed", delay_ms=500)
    print("booked", account, amount, flush=True)


async def pay() -> None:
    """Make the topic, as the number of its queues must not change meanwhile; send the payments."""
    async with AdminClient() as admin:
        await admin.create_topic("Payments", queues=4)
    async with Producer("tellers") as producer:
        for number in range(1, 4):
            for account in ("alice", "bob"):
                payment = Message("Payments", b"%d0 eur" % number, keys=[account])
                await producer.send(payment, sharding_key=account)


async def main() -> None:
    """Pay, and book until a signal; then the listener ends, and what it did is committed."""
    await pay()
    consumer = PushConsumer("ledger", start="earliest")
    consumer.subscribe("Payments")
    consumer.listen_orderly(book)
    async with consumer:
        await consumer.run_forever()


run(main())
