"""EncodedProducer: sends messages that the caller has encoded, under unique ids that it chose."""

from __future__ import annotations

import os

from kourou.client.calls_send import Outgoing
from kourou.client.config import ProducerConfig
from kourou.client.instance import ClientInstance
from kourou.client.lifetime import Lifetime
from kourou.client.send_receipt import SendReceipt
from kourou.client.sending.queue_choice import RoundRobin
from kourou.client.sending.send_hooks import SendHooks
from kourou.client.sending.sender import Sender
from kourou.model.msgid import UniqueIdGenerator
from kourou.model.queue import MessageQueue
from kourou.model.topic import check_client_group
from kourou.remoting.runtime import Runtime


class EncodedProducer(Lifetime):
    """Sends encoded messages and batches, for tools that convert or copy many messages.

    A `Producer` encodes and checks each message and draws its unique id. Here the caller does so
    (`kourou.client.calls_send`), and can therefore send the same messages again under the same ids.
    Delivery is at least once, with the retries of a `Producer`, unless `resends` is false. A topic
    without a route is refused, never created.

    Args:
        group: identifies the producer in the client lists of brokers.
        namesrv_addr: as in `Producer`.
        config: limits, timeouts and credentials; `auto_create_topic` and `linger_ms` have no
            effect.
        resends: send messages again whose answer did not arrive, which may store them twice.
        runtime: network, clock and randomness, for tests; None: those of the system.

    Raises:
        InvalidGroupError, ConfigError: an argument is not a valid name or address.
    """

    def __init__(
        self,
        group: str,
        namesrv_addr: str | None,
        *,
        config: ProducerConfig,
        resends: bool = True,
        runtime: Runtime | None = None,
    ) -> None:
        check_client_group(group)
        self._group = group
        self._config = config
        self._resends = resends
        runtime = runtime or Runtime.system()
        self._instance = ClientInstance(
            namesrv_addr, config, runtime, kind="producer", producer_group=group
        )
        rng = runtime.random
        self._ids = UniqueIdGenerator(self._instance.ip, os.getpid(), lambda: rng.getrandbits(32))

    async def start(self) -> None:
        """Start; no request is sent before the first message.

        Raises:
            ClosedError: the producer was started before.
        """
        self._instance.start()
        self._sender = Sender(
            self._instance,
            self._group,
            self._config,
            SendHooks(()),
            self._ids,
            resends=self._resends,
        )

    async def close(self) -> None:
        """Disconnect. Sends in progress fail with a `TransportError`; await them before."""
        if self._instance.stop():
            await self._instance.close()
        else:
            await self._instance.wait_ended()

    def next_id(self) -> str:
        """Return a new unique id."""
        return self._ids.next(self._instance.runtime.clock.now_ms())

    async def send(
        self, outgoing: Outgoing, *, queue: MessageQueue | None = None, timeout_ms: int
    ) -> list[SendReceipt]:
        """Send a message or batch, and return a receipt for each message when they are stored.

        Args:
            outgoing: checked and encoded; a single message is compressed as the config asks.
            queue: the only queue to use; None: the next queue in turn.
            timeout_ms: for all tries together.

        Raises:
            TransportError: there is no route, or no answer arrived; the messages may be stored.
            RemoteError: the broker refused the messages.
            ClosedError: the producer is closed, or was never started.
        """
        self._instance.check_open()
        return await self._sender.send(outgoing, timeout_ms, queue)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Look up and return the writable queues of a topic, at least one, in `Producer`'s order.

        Raises:
            NoRouteError: the topic does not exist, or has no writable queue.
            ConnectFailedError, RequestTimeoutError: no name server answered.
        """
        self._instance.check_open()
        route = await self._instance.routes.refresh(topic, self._instance.request_timeout_s)
        return list(RoundRobin(topic, 0).queues(route))
