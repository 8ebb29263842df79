"""Request a price and print the reply; `price_answers.py` must be running.

Requires `kourou serve` or RocketMQ, on localhost unless NAMESRV_ADDR names another address.
"""

from __future__ import annotations

from kourou import Message
from kourou.blocking import Producer

with Producer("price-questions") as producer:
    reply = producer.request(Message("PriceAsked", b"o-17"), timeout_ms=60_000)
    print(reply.body.decode())
