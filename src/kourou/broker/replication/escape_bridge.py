"""Stores messages at masters of other broker names, while this slave acts for its own.

Delivery levels and others put their messages here instead of into the log, which has only what the
master has written. A message is sent to a random writable queue of its topic elsewhere; so the
topic must exist there. It loses the properties that would delay it again. What cannot be stored is
refused, and the caller tries again later. A send without an answer may have been stored.

Revive records are sent to a queue that the caller chooses, and keep all properties.

Source: EscapeBridge.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

from kourou.broker.config import BrokerConfig
from kourou.broker.writing.placement import drop_timers
from kourou.broker.writing.put import Done, PutResult, PutStatus
from kourou.errors import KourouError, MessageIllegalError, RemoteError
from kourou.model import properties as names
from kourou.model.properties import decode_properties, encode_properties
from kourou.model.route import publish_queues
from kourou.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from kourou.model.topic import NON_DESTINATION_TOPICS
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import raise_for_response, request
from kourou.protocol.record.encode import RecordDraft
from kourou.protocol.routes import GetRouteInfoRequestHeader, decode_topic_route
from kourou.protocol.sending import SendMessageRequestHeaderV2
from kourou.remoting.pool import ConnectionPool

log = logging.getLogger(__name__)

_ROUTE_TIMEOUT_S: Final = 1.0
_SEND_TIMEOUT_S: Final = 3.0
_SENDS_MAX: Final = 64
"""Most sends at a time; others wait."""
_FRESH_S: Final = 30.0
"""Time for which a route is used before it is asked for again; not after a failed send."""
_TOPICS_MAX: Final = 10_000
_STORED: Final = {
    ResponseCode.SUCCESS: PutStatus.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: PutStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: PutStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: PutStatus.FLUSH_SLAVE_TIMEOUT,
}
_DELAYING: Final = (names.DELAY, names.REAL_TOPIC, names.REAL_QID, names.TIMER_OUT_MS, names.CRC32)


def delivery_queue_elsewhere(topic: str, queue_id: int) -> int | None:
    """Return a queue for any topic that clients may send to.

    Whether the topic exists counts at the other broker: the slave may not know it yet.
    """
    return None if topic in NON_DESTINATION_TOPICS else queue_id


class RemoteQueue(NamedTuple):
    """A writable queue of a topic at another broker.

    Attributes:
        address: of its master.
    """

    broker_name: str
    address: str
    queue_id: int


class EscapeBridge:
    """Sends the messages of one slave elsewhere."""

    def __init__(self, config: BrokerConfig, pool: ConnectionPool, random: Random) -> None:
        """Send by connections of `pool`, as the producer group of this slave."""
        self._own_name = config.broker_name
        self._group = f"InnerProducerGroup_{config.broker_name}_{config.broker_id}"
        self._namesrv = config.namesrv_addr
        self._pool = pool
        self._random = random
        self._routes: dict[str, tuple[float, list[RemoteQueue]]] = {}  # and when it was asked for
        self._slots = asyncio.Semaphore(_SENDS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    def put(
        self,
        drafts: Sequence[RecordDraft],
        now_ms: int,  # noqa: ARG002 - the other broker decides
        done: Done,
        *,
        answers_late: bool = True,  # noqa: ARG002 - that broker's time-out counts
    ) -> None:
        """Send one message, and call `done` with the result; as `GroupCommit.put`."""
        assert len(drafts) == 1, "batches are not sent"
        task = asyncio.create_task(self._put(drafts[0], done), name="escape")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def abandon(self) -> None:
        """Cancel all sends; their `done` is not called."""
        for task in self._tasks:
            task.cancel()

    async def _put(self, draft: RecordDraft, done: Done) -> None:
        async with self._slots:
            result = await self._send(draft)
        done(result)

    async def _send(self, draft: RecordDraft) -> PutResult:
        topic = draft.topic.decode()
        try:
            queues = await self.queues(topic)
        except (KourouError, OSError) as error:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=f"topic {topic}: {error}")
        if not queues:
            reason = f"no other broker has a writable queue of topic {topic}"
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=reason)
        properties = decode_properties(draft.properties)
        drop_timers(properties)
        for name in _DELAYING:
            properties.pop(name, None)
        return await self.send(draft, properties, self._random.choice(queues))

    async def send(
        self, draft: RecordDraft, properties: dict[str, str], queue: RemoteQueue
    ) -> PutResult:
        """Send a message with these properties to a queue of another broker."""
        topic = draft.topic.decode()
        try:
            header = self._header(draft, topic, properties, queue)
            command = request(RequestCode.SEND_MESSAGE_V2, header, draft.body)
            answer = await self._pool.request(queue.address, command, _SEND_TIMEOUT_S)
            status = _STORED.get(ResponseCode(answer.code)) if answer.code in _STORED else None
            if status is not None:
                return PutResult(status)
            raise_for_response(answer)
        except MessageIllegalError as error:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=str(error))
        except (KourouError, OSError) as error:
            self._routes.pop(topic, None)
            is_busy = isinstance(error, RemoteError) and error.code == ResponseCode.SYSTEM_BUSY
            status = PutStatus.BUSY if is_busy else PutStatus.SERVICE_NOT_AVAILABLE
            return PutResult(status, reason=f"topic {topic}: {error}")
        raise AssertionError("a code other than SUCCESS has raised")

    def _header(
        self, draft: RecordDraft, topic: str, properties: dict[str, str], queue: RemoteQueue
    ) -> SendMessageRequestHeaderV2:
        return SendMessageRequestHeaderV2(
            producer_group=properties.get(names.PGROUP, self._group),
            topic=topic,
            default_topic=topic,
            default_topic_queue_nums=1,
            queue_id=queue.queue_id,
            sys_flag=draft.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6),
            born_timestamp=draft.born_at_ms,
            flag=draft.flag,
            properties=encode_properties(properties).decode(),
            reconsume_times=draft.reconsume_times,
            broker_name=queue.broker_name,
        )

    async def queues(self, topic: str) -> list[RemoteQueue]:
        """Return the writable queues of a topic elsewhere; none if no name server has any.

        Raises:
            TransportError, RemoteError, ProtocolError: no name server answers with a route.
        """
        now_s = asyncio.get_running_loop().time()
        asked_at_s, queues = self._routes.get(topic, (-_FRESH_S, []))
        if now_s - asked_at_s < _FRESH_S:
            return queues
        failure: KourouError | None = None
        for namesrv in self._namesrv:
            try:
                queues = await self._ask(namesrv, topic)
            except KourouError as error:
                failure = error
                continue
            if len(self._routes) >= _TOPICS_MAX:
                self._routes.clear()
            if queues:
                self._routes[topic] = now_s, queues
            return queues
        raise failure or RemoteError(ResponseCode.TOPIC_NOT_EXIST, "there are no name servers")

    async def _ask(self, namesrv: str, topic: str) -> list[RemoteQueue]:
        header = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        answer = await self._pool.request(namesrv, command, _ROUTE_TIMEOUT_S)
        raise_for_response(answer)
        route = decode_topic_route(answer.body)
        found: list[RemoteQueue] = []
        for queue in publish_queues(topic, route):
            address = route.master_address(queue.broker_name)
            if address is not None and queue.broker_name != self._own_name:
                found.append(RemoteQueue(queue.broker_name, address, queue.queue_id))
        return found
