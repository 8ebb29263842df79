"""Remind of two appointments some seconds ahead, and call one of them off.

The broker keeps a message with a time until then, and lets it be taken back; RocketMQ's does with
`recallMessageEnable=true`. NAMESRV_ADDR says where it is, unless it is here.
"""

from __future__ import annotations

import time

from kourou import Message
from kourou.blocking import Producer, PullConsumer

with Producer("calendar") as producer:
    now_ms = int(time.time() * 1000)
    for who, in_ms in (("dentist", 4_000), ("opera", 5_000)):
        reminder = Message("Reminders", who.encode(), keys=[who], deliver_at_ms=now_ms + in_ms)
        receipt = producer.send(reminder)
        if who == "dentist" and receipt.recall_handle is not None:
            producer.recall("Reminders", receipt.recall_handle)
            print("called off", who, flush=True)

with PullConsumer("bell", start="earliest") as consumer:
    consumer.subscribe("Reminders")
    while not (reminders := consumer.poll(timeout_ms=1_000)):
        pass
    for one in reminders:
        print("remind of", one.body.decode(), flush=True)
