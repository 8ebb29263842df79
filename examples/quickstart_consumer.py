"""Charge each order as soon as it is placed, until Ctrl-C or SIGTERM.

Requires `kourou serve` or RocketMQ, on localhost unless NAMESRV_ADDR names another address.
"""

from __future__ import annotations

from kourou import MessageExt, PushConsumer, run

consumer = PushConsumer("billing", start="earliest")
consumer.subscribe("orders", tags="eu || us")


@consumer.listen
def charge(message: MessageExt) -> None:
    """Charge one order: returning acknowledges it, raising has it delivered again."""
    print("charge", *message.keys, message.body.decode(), flush=True)


run(consumer)  # until Ctrl-C or SIGTERM; then listeners end, and what they did is committed
