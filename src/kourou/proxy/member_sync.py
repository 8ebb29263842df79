"""Exchange of the members of consumer groups among proxies, by a topic that all of them read.

Kourou's proxies register their clients at the brokers, where each proxy finds them. The exchange is
for RocketMQ's proxies, which do not: without it, members on two proxies would each take all queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kourou.client.calls_consume import max_offset, pull
from kourou.client.calls_send import Outgoing, send_command
from kourou.errors import KourouError, NoRouteError, ProtocolError
from kourou.model.queue import MessageQueue
from kourou.model.route import MASTER_ID
from kourou.model.subscription import SubscriptionData
from kourou.model.topic import AUTO_CREATE_TOPIC, PERM_READ, PERM_WRITE
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import raise_for_response, request
from kourou.protocol.connections import ConsumerConnection
from kourou.protocol.routes import decode_cluster_info
from kourou.protocol.topics import CreateTopicRequestHeader
from kourou.proxy.cluster import REQUEST_TIMEOUT_S, Cluster
from kourou.proxy.member_messages import (
    SYNC_GROUP,
    SYNC_PRODUCER,
    SYNC_TOPIC,
    LocalMember,
    RemoteMembers,
    decode_member_change,
    encode_member_change,
    member_change,
)

log = logging.getLogger(__name__)

_POLL_MS: Final = 15_000
_RETRY_S: Final = 2.0
_REFRESH_S: Final = 20.0
_MESSAGES: Final = 32
_MESSAGES_BYTES: Final = 1024 * 1024
_SENDS_MAX: Final = 1_000
"""Messages that may wait for brokers; further ones are dropped: the next heartbeat sends again."""
_ALL: Final = SubscriptionData(SYNC_TOPIC)


class MemberSync:
    """The exchange of one proxy. Created inside a running loop; started and stopped once.

    Args:
        cluster: the brokers.
        proxy_id: `ip%remoting port%gRPC port`, different for each proxy.
        on_changed: called with a group whose members at other proxies have changed.
    """

    def __init__(self, cluster: Cluster, proxy_id: str, on_changed: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._id = proxy_id
        self._on_changed = on_changed
        self._members = RemoteMembers()
        self._readers: dict[MessageQueue, asyncio.Task[None]] = {}
        self._sends: set[asyncio.Task[None]] = set()
        self._turn = 0
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read the members of other proxies."""
        self._watch = asyncio.create_task(self._watch_queues(), name="members of other proxies")

    async def stop(self) -> None:
        """Stop to read; wait for messages that are being sent. Later ones can still be sent."""
        tasks = [*self._readers.values(), *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.flush()

    async def flush(self) -> None:
        """Wait for messages that are being sent."""
        if self._sends:
            await asyncio.wait(self._sends, timeout=REQUEST_TIMEOUT_S)

    def of(self, group: str) -> list[str]:
        """Return the ids of a group's members at other proxies."""
        return self._members.of(group, asyncio.get_running_loop().time())

    def connection(self, group: str) -> ConsumerConnection | None:
        """Return a group's members at other proxies, and its subscriptions; None without any."""
        return self._members.connection(group, asyncio.get_running_loop().time())

    def publish(self, kind: str, member: LocalMember) -> None:
        """Tell the other proxies of a member of this one, without waiting."""
        if len(self._sends) >= _SENDS_MAX:
            return
        task = asyncio.create_task(self._send(kind, member))
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)

    async def _send(self, kind: str, member: LocalMember) -> None:
        now_ms = self._cluster.now_ms()
        body = encode_member_change(member_change(kind, member, self._id, now_ms))
        try:
            queues = self._cluster.available(await self._cluster.writable_queues(SYNC_TOPIC))
            if not queues:
                return
            self._turn += 1
            queue = queues[self._turn % len(queues)]
            address = await self._cluster.address(SYNC_TOPIC, queue.broker_name)
            outgoing = Outgoing(SYNC_TOPIC, (), body, "")
            command = send_command(outgoing, queue, SYNC_PRODUCER, now_ms, 0)
            raise_for_response(
                await self._cluster.pool.request(address, command, REQUEST_TIMEOUT_S)
            )
        except KourouError as error:
            log.info("member.not_published group=%s reason=%s", member.consumer.group, error)

    async def _watch_queues(self) -> None:
        """Read all queues of the topic; create it if there is none."""
        while True:
            try:
                queues = await self._cluster.readable_queues(SYNC_TOPIC)
            except NoRouteError:
                await self._create()
                queues = []
            except KourouError as error:
                log.info("members.unread reason=%s", error)
                queues = []
            for queue in queues:
                if queue not in self._readers:
                    self._readers[queue] = asyncio.create_task(self._read(queue))
            for group in self._members.expire(asyncio.get_running_loop().time()):
                self._on_changed(group)
            await asyncio.sleep(_REFRESH_S if self._readers else _RETRY_S)

    async def _create(self) -> None:
        """Create the topic on all brokers."""
        header = CreateTopicRequestHeader(
            SYNC_TOPIC, AUTO_CREATE_TOPIC, 1, 1, PERM_READ | PERM_WRITE, "SINGLE_TAG"
        )
        try:
            answer = await self._cluster.name_servers.request(
                request(RequestCode.GET_BROKER_CLUSTER_INFO), REQUEST_TIMEOUT_S
            )
            for broker in decode_cluster_info(answer.body).brokers.values():
                address = broker.broker_addrs.get(MASTER_ID)
                if address is not None:
                    command = request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
                    await self._cluster.pool.request(address, command, REQUEST_TIMEOUT_S)
        except KourouError as error:
            log.info("members.topic_not_created reason=%s", error)

    async def _read(self, queue: MessageQueue) -> None:
        """Read a queue from its present end on."""
        offset: int | None = None
        pool = self._cluster.pool
        while True:
            try:
                address = await self._cluster.address(SYNC_TOPIC, queue.broker_name)
                if offset is None:
                    offset = await max_offset(pool, address, queue, timeout_s=REQUEST_TIMEOUT_S)
                result = await pull(
                    pool,
                    address,
                    SYNC_GROUP,
                    queue,
                    offset,
                    subscription=_ALL,
                    max_messages=_MESSAGES,
                    max_bytes=_MESSAGES_BYTES,
                    timeout_s=_POLL_MS / 1000 + REQUEST_TIMEOUT_S,
                    suspend_ms=_POLL_MS,
                )
                for message in result.readable:
                    self._take(message.body)
                offset = result.next_offset
            except KourouError as error:
                log.info("members.unread queue=%s reason=%s", queue, error)
                await asyncio.sleep(_RETRY_S)

    def _take(self, body: bytes) -> None:
        try:
            change = decode_member_change(body)
        except ProtocolError as error:
            log.warning("member.malformed reason=%s", error)
            return
        if change.local_proxy_id == self._id:
            return
        if self._members.apply(change, asyncio.get_running_loop().time()):
            self._on_changed(change.group)
