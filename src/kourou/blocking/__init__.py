"""Blocking clients, for programs without an event loop, with the names of the asyncio clients.

    from kourou import Message
    from kourou.blocking import Producer

    with Producer("orders", "localhost:9876") as producer:
        receipt = producer.send(Message("OrderPlaced", b"..."))

Each method is documented at the asyncio method of the same name in `kourou`. All blocking clients
of a process share one event loop on one background thread, started on first use. They are
thread-safe. Ctrl-C during a call cancels the call, as cancelling its coroutine would. Listeners
that are plain functions run on threads of their consumer, as with the asyncio clients.

`run_forever` shuts down cleanly on SIGTERM. A `for` loop or `poll` in the main thread does so after
`signal.signal(signal.SIGTERM, lambda *_: sys.exit())`, because `with` then closes the client.
Otherwise Python exits at once, and messages that were not committed are delivered again.
"""

from __future__ import annotations

from kourou.blocking.admin import AdminClient
from kourou.blocking.consumers import PullConsumer, PushConsumer, SimpleConsumer
from kourou.blocking.producers import Producer, TransactionProducer

__all__ = [
    "AdminClient",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "TransactionProducer",
]
