"""The clients for programs without an event loop: the same names, waiting instead of awaiting.

    from kourou import Message
    from kourou.blocking import Producer

    with Producer("orders", "localhost:9876") as producer:
        receipt = producer.send(Message("OrderPlaced", b"..."))

What a method returns, raises and leaves true is said at the one of the same name in `kourou`. All
run in one event loop on one background thread, shared by the clients of the process and started
when first needed. Any thread may call. Ctrl-C in a call cancels it, as cancelling its coroutine
would. Listeners that are plain functions run on threads of their consumer, as ever.

`run_forever` ends cleanly at SIGTERM. So does a loop or poll of the main thread after
`signal.signal(signal.SIGTERM, lambda *_: sys.exit())`, as `with` then closes the client; without,
Python ends at once, and what was not committed is delivered again.
"""

from __future__ import annotations

from kourou.blocking.admin import AdminClient
from kourou.blocking.producer import Producer
from kourou.blocking.pull_consumer import PullConsumer
from kourou.blocking.push_consumer import PushConsumer
from kourou.blocking.transaction_producer import TransactionProducer

__all__ = ["AdminClient", "Producer", "PullConsumer", "PushConsumer", "TransactionProducer"]
