"""Ask for a price and print the reply; `price_answers.py` runs beside it.

Needs a running `kourou serve`, or any RocketMQ; NAMESRV_ADDR says where, unless it is here.
"""

from __future__ import annotations

from kourou import Message
from kourou.blocking import Producer

with Producer("price-questions") as producer:
    reply = producer.request(Message("PriceAsked", b"o-17"), timeout_ms=60_000)
    print(reply.body.decode())
