"""Inspection of consume queues, and removal of unused files: requests 321, 306, 316 and 329.

Source: AdminBrokerProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from kourou.broker.context import BrokerContext
from kourou.broker.popping.invisible import InvisibleMessages
from kourou.broker.popping.pop_config import find_kv_store
from kourou.broker.pulling.consumer_filters import ConsumerFilters
from kourou.broker.pulling.message_filters import FilterBits, MessageFilter
from kourou.broker.writing.queue_deletion import QueueDeletion
from kourou.broker.writing.retention import Retention
from kourou.errors import RemoteSystemError, StoreError
from kourou.filter.tags import matches_code
from kourou.model.subscription import SubscriptionData
from kourou.model.topic import is_system_topic
from kourou.protocol.brokers import (
    ConsumeQueueData,
    QueryConsumeQueueRequestHeader,
    QueryConsumeQueueResponse,
    encode_consume_queue,
)
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.consumer_filter_file import consumer_filter_to_json
from kourou.protocol.fastjson import dumps
from kourou.remoting.connection import Request
from kourou.store.formats import QueueEntry
from kourou.store.message_store import MessageStore
from kourou.store.queues.queue_extension import ExtensionUnit, encode_unit, is_address

log = logging.getLogger(__name__)

MayMatch = Callable[[ExtensionUnit], bool]
"""Returns, from an entry's extension unit, whether the message may match a group's filter."""

ENTRIES_MAX: Final = 10_000
"""Most entries in one answer to 321, whatever the request asks for."""


class StoreAdminHandlers:
    """Serves the requests."""

    def __init__(
        self,
        context: BrokerContext,
        filters: ConsumerFilters,
        queue_deletion: QueueDeletion,
        retention: Retention,
        invisible: InvisibleMessages,
    ) -> None:
        """Create the handlers.

        Args:
            context: the broker's state and services.
            filters: source of the property filters of groups.
            queue_deletion: deletes the queues of a topic, durably.
            retention: removes expired files.
            invisible: the messages in flight of groups that pop.
        """
        self._topics = context.topics
        self._clients = context.clients
        self._filters = filters
        self._store = context.store
        self._queue_deletion = queue_deletion
        self._retention = retention
        self._invisible = invisible
        self._disk = context.disk
        self._offload = context.offload
        self._later = context.later

    def on_query_consume_queue(self, request: Request) -> None:
        """Serve 321: return entries of a queue from an offset on, and a group's subscription.

        As in Java, an offset outside the queue is answered with success, a remark, and no body.

        Raises:
            RemoteSystemError: the topic has no such queue.
        """
        command = request.command
        header = command.header(QueryConsumeQueueRequestHeader)
        topic, queue_id = self._topics.get(header.topic), header.queue_id
        queue_nums = max(topic.read_queue_nums, topic.write_queue_nums) if topic else 0
        if not 0 <= queue_id < queue_nums:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR, f"{queue_id}@{header.topic} is not exist!"
            )
        subscription, filter_data, may_match = self._group_filter(header)
        first, end = (
            self._store.reader.min_offset(header.topic, queue_id),
            self._store.reader.max_offset(header.topic, queue_id),
        )

        async def serve() -> RemotingCommand:
            if not first <= header.index < end:
                remark = f"Index {header.index} of {queue_id}@{header.topic} is not exist!"
                return response(command, remark=remark)
            count = min(max(0, header.count), ENTRIES_MAX, end - header.index)
            offsets = range(header.index, header.index + count)
            entries = await self._offload(_entries, self._store, header.topic, queue_id, offsets)
            group, visible_at_ms = header.consumer_group, {}
            if group is not None:
                visible_at_ms = await self._invisible.visible_at_ms(
                    header.topic, group, queue_id, offsets
                )
            found = QueryConsumeQueueResponse(
                tuple(
                    replace(
                        _entry_data(entry, unit, may_match), visible_at_ms=visible_at_ms.get(offset)
                    )
                    for offset, (entry, unit) in zip(offsets, entries, strict=False)
                ),
                end,
                first,
                subscription,
                filter_data,
            )
            return response(command, body=encode_consume_queue(found))

        self._later.answer(request, serve)

    def _group_filter(
        self, header: QueryConsumeQueueRequestHeader
    ) -> tuple[SubscriptionData | None, str | None, MayMatch | None]:
        """Return the subscription of the request's group, its filter as text, and its matcher."""
        group, topic = header.consumer_group, header.topic
        if group is None:
            return None, None, None
        subscription = self._clients.subscription(group, topic)
        if subscription is None:
            return None, f"{group}@{topic} is not online!", None
        known = self._filters.get(topic, group)
        if known is None:
            return subscription, "null", lambda unit: matches_code(subscription, unit.tags_code)
        text = dumps(consumer_filter_to_json(self._filters.text_of(known)), pretty=True).decode()
        bits = FilterBits(self._filters.bloom, known.positions, known.born_at_ms)
        return subscription, text, MessageFilter(known.compiled, bits).may_match

    def on_clean_unused_topic(self, request: Request) -> None:
        """Serve 316: remove the queues of topics that do not exist any more.

        If the queues of one topic cannot be removed, the answer has code 1, and the queues of the
        topics before it have been removed.
        """

        async def serve() -> RemotingCommand:
            for name in self._store.reader.queues():
                if self._topics.get(name) is not None or is_system_topic(name):
                    continue
                try:
                    await self._queue_deletion.delete(name)
                except StoreError as error:
                    raise RemoteSystemError(
                        ResponseCode.SYSTEM_ERROR,
                        f"the queues of topic {name} cannot be removed: {error}",
                    ) from error
                log.info("topic.cleaned name=%s", name)
            return response(request.command)

        self._later.answer(request, serve)

    def on_clean_expired_consume_queue(self, request: Request) -> None:
        """Serve 306: remove queue files whose entries all refer to expired messages.

        Each queue keeps its last file, so that its offsets continue. Java removes the whole queue,
        which then starts at offset 0 again: groups with larger committed offsets would miss
        messages.
        """

        async def serve() -> RemotingCommand:
            try:
                await self._retention.clean_queues()
            except StoreError as error:
                raise RemoteSystemError(ResponseCode.SYSTEM_ERROR, str(error)) from error
            return response(request.command)

        self._later.answer(request, serve)

    def on_delete_expired_commitlog(self, request: Request) -> RemotingCommand:
        """Serve 329: let the next 20 runs of retention remove expired messages at any hour."""
        self._retention.request()
        return response(request.command)

    def on_pop_rollback(self, request: Request) -> None:
        """Serve 200056: export the pops of RocksDB's pop store, as mqadmin exportPopRecord asks.

        Without that store there is nothing to export, and the answer is success, as in Java. Kourou
        cannot read one.

        Raises:
            RemoteSystemError: the store directory holds one.
        """

        async def serve() -> RemotingCommand:
            kv_store = await self._offload(find_kv_store, self._disk)
            if kv_store is not None:
                raise RemoteSystemError(ResponseCode.SYSTEM_ERROR, kv_store)
            return response(request.command)

        self._later.answer(request, serve)


def _entries(
    store: MessageStore, topic: str, queue_id: int, offsets: Sequence[int]
) -> list[tuple[QueueEntry, ExtensionUnit | None]]:
    """Return the queue's entries, up to the first that has expired; may read the disk."""
    found = []
    for offset in offsets:
        entry = store.reader.entry(topic, queue_id, offset)
        if entry is None:
            break
        found.append((entry, store.reader.extension_unit(topic, queue_id, entry.tags_code)))
    return found


def _entry_data(
    entry: QueueEntry, unit: ExtensionUnit | None, may_match: MayMatch | None
) -> ConsumeQueueData:
    """Return an entry in the form of the answer to 321, with the data of its extension unit."""
    data = ConsumeQueueData(entry.physical_offset, entry.size, entry.tags_code)
    if unit is None:
        is_missing = is_address(entry.tags_code)
        msg = f"Cq extend not exist!addr: {entry.tags_code}" if is_missing else None
        return replace(data, msg=msg)
    extension: dict[str, object] = {
        "msgStoreTime": unit.store_at_ms,
        "size": len(encode_unit(unit)),
        "tagsCode": unit.tags_code,
    }
    if unit.bit_map:
        extension = {"filterBitMap": b64encode(unit.bit_map).decode()} | extension
    return replace(
        data,
        tags_code=unit.tags_code,
        extend_data_json=dumps(extension).decode(),
        bit_map=_bits(unit.bit_map) if unit.bit_map else None,
        eval=may_match is not None and may_match(unit),
    )


def _bits(bit_map: bytes) -> str:
    """Return the bits, the last byte first, in lines of eight bytes, as BitsArray.toString."""
    lines = [
        f"{bit_map[at]:08b}" + ("" if at % _LINE_BYTES else "\n")
        for at in range(len(bit_map) - 1, -1, -1)
    ]
    return "".join(lines)


_LINE_BYTES: Final = 8
