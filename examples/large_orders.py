"""Send four orders, and read those that match an SQL92 expression over their properties.

The broker must have filters by properties enabled, which is not the default:
`KOUROU_BROKER_ENABLE_PROPERTY_FILTER=true kourou serve`. NAMESRV_ADDR has its address, by default
localhost.
"""

from __future__ import annotations

from kourou import Message
from kourou.blocking import Producer, PullConsumer

ORDERS = (("o-1", "90", "eu"), ("o-2", "250", "eu"), ("o-3", "700", "us"), ("o-4", "400", "jp"))

with Producer("shop") as producer:
    for order, eur, region in ORDERS:
        properties = {"eur": eur, "region": region}
        producer.send(Message("Orders", order.encode(), properties=properties))

with PullConsumer("large-orders", start="earliest") as consumer:
    consumer.subscribe("Orders", sql="eur >= 200 AND region IN ('eu', 'us')")
    taken: set[str] = set()
    while len(taken) < 2:
        taken |= {message.body.decode() for message in consumer.poll(timeout_ms=1_000)}
    print(*sorted(taken))
