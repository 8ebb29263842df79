"""Schedule two reminders some seconds ahead, and recall one of them.

The broker delivers a scheduled message at its time, and allows to recall it before; RocketMQ's
brokers need `recallMessageEnable=true` for that. Requires a broker on localhost, unless
NAMESRV_ADDR names another address.
"""

from __future__ import annotations

import time

from kourou import Message
from kourou.blocking import Producer, PullConsumer

with Producer("calendar") as producer:
    now_ms = int(time.time() * 1000)
    for reason, in_ms in (("dentist", 4_000), ("opera", 5_000)):
        reminder = Message(
            "Reminders", reason.encode(), keys=[reason], deliver_at_ms=now_ms + in_ms
        )
        receipt = producer.send(reminder)
        if reason == "dentist" and receipt.recall_handle is not None:
            producer.recall("Reminders", receipt.recall_handle)
            print("recalled", reason, flush=True)

with PullConsumer("bell", start="earliest") as consumer:
    consumer.subscribe("Reminders")
    while not (reminders := consumer.poll(timeout_ms=1_000)):
        pass
    for one in reminders:
        print("remind of", one.body.decode(), flush=True)
