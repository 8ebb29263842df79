"""Render reports of very different length, until Ctrl-C or SIGTERM.

First, three reports are ordered. In pop mode the broker delivers each order to any member that has
room, so that a long report delays no other, and any number of members share the work.
Requires `kourou serve` or RocketMQ 5, on localhost unless NAMESRV_ADDR names another address.
"""

from __future__ import annotations

import time

from kourou import Message, MessageExt, PushConsumer, run
from kourou.blocking import Producer

with Producer("clerks") as producer:
    for seconds in ("0.5", "0.1", "0.2"):
        producer.send(Message("ReportOrdered", seconds.encode()))

consumer = PushConsumer("renderers", start="earliest", mode="pop")
consumer.subscribe("ReportOrdered")


@consumer.listen
def render(message: MessageExt) -> None:
    """Render one report; it may take minutes, because the message is renewed meanwhile."""
    time.sleep(float(message.body))
    print("rendered", message.body.decode(), flush=True)


run(consumer)  # until Ctrl-C or SIGTERM; what no listener has begun goes to other members at once
