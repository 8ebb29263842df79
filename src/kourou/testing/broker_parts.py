"""The parts of a broker that serve consumers, put together without a network or a port.

For tests of one handler: requests come from a `FakePeer` and are answered to it. What a whole
broker does, over a network in memory, is `kourou.testing.cluster`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

from kourou.broker.admin_groups import GroupAdminHandlers
from kourou.broker.client_handlers import ClientHandlers, ConsumerIdsNotifier
from kourou.broker.clients import Clients
from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.broker.consumer_offsets import FILE_NAME as OFFSETS_FILE
from kourou.broker.consumer_offsets import ConsumerOffsets, parse_consumer_offsets
from kourou.broker.delay import FILE_NAME as DELAY_FILE
from kourou.broker.delay import DelayDelivery, parse_delay_offsets
from kourou.broker.group_commit import GroupCommit
from kourou.broker.groups import FILE_NAME as GROUPS_FILE
from kourou.broker.groups import Groups
from kourou.broker.later import LaterReplies
from kourou.broker.offset_handlers import OffsetHandlers
from kourou.broker.placement import place
from kourou.broker.pull import PullHandler
from kourou.broker.put import PutResult, PutStatus
from kourou.broker.retry import SendBackHandler
from kourou.broker.topics import FILE_NAME as TOPICS_FILE
from kourou.broker.topics import Topics
from kourou.clock import Clock
from kourou.model import properties as names
from kourou.model.properties import encode_properties
from kourou.model.topic import TopicConfig
from kourou.protocol.bodies import decode_subscription_group_table, decode_topic_config_table
from kourou.protocol.message_layout import RecordDraft
from kourou.store.config import StoreConfig
from kourou.store.config_file import ConfigFile
from kourou.store.message_store import Arrival, MessageStore
from kourou.testing.clock import LoopClock
from kourou.testing.disk import SimDisk
from kourou.testing.flusher import SimFlusher
from kourou.testing.runtime import call_directly

PRODUCER = ("10.0.0.7", 40_000)
BROKER = ("10.0.0.1", 10911)


def small_config(**options: object) -> BrokerConfig:
    """Return the config of a broker with small files, which are checked fast."""
    small: dict[str, Any] = {
        "store": StoreConfig(commitlog_segment_bytes=1 << 20, consumequeue_file_bytes=20 * 1000),
        "max_message_size_bytes": 1 << 18,
    }
    return BrokerConfig(**small | options)


class BrokerParts:
    """One broker's tables, store and handlers, on the running loop.

    Attributes:
        arrivals: all messages that became visible, oldest first.
    """

    def __init__(
        self,
        disk: SimDisk,
        *,
        seed: int = 0,
        config: BrokerConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = config = config or small_config()
        self.disk = disk
        self.clock = clock or LoopClock()
        self.arrivals: list[Arrival] = []
        self.store = MessageStore.open(disk, config.store, self.clock.now_ms(), pid=1)
        loop = asyncio.get_running_loop()
        self.flusher = SimFlusher(loop, seed)
        self.commit = GroupCommit(self.store, self.flusher, loop, config, self._on_arrivals)
        self.later = LaterReplies()
        self.topics = Topics(
            ConfigFile(disk, TOPICS_FILE, decode_topic_config_table),
            config,
            call_directly,
            self.clock,
        )
        self.groups = Groups(
            ConfigFile(disk, GROUPS_FILE, decode_subscription_group_table),
            call_directly,
            self.clock,
            auto_create=config.auto_create_subscription_group,
        )
        is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.offsets = ConsumerOffsets(
            ConfigFile(disk, OFFSETS_FILE, parse_consumer_offsets),
            call_directly,
            self.clock,
            None if is_sync else self.store,
        )
        self.offsets.clamp(self.store.max_offset)
        self.clients = Clients(ConsumerIdsNotifier(self.groups))
        self.client_handlers = ClientHandlers(self.clients, self.groups, self.topics)
        self.offset_handlers = OffsetHandlers(
            groups=self.groups,
            topics=self.topics,
            offsets=self.offsets,
            store=self.store,
            resident_bytes=config.store.resident_bytes,
        )
        self.admin = GroupAdminHandlers(
            broker_name=config.broker_name,
            topics=self.topics,
            groups=self.groups,
            clients=self.clients,
            offsets=self.offsets,
            store=self.store,
            later=self.later,
        )
        self.pulls = PullHandler(
            config,
            topics=self.topics,
            groups=self.groups,
            clients=self.clients,
            offsets=self.offsets,
            store=self.store,
            later=self.later,
            offload=call_directly,
        )
        self.send_backs = SendBackHandler(
            config=config,
            topics=self.topics,
            groups=self.groups,
            store=self.store,
            commit=self.commit,
            later=self.later,
            offload=call_directly,
            clock=self.clock,
            random=Random(seed),
            store_host=BROKER,
        )
        self.delay = DelayDelivery(
            store=self.store,
            commit=self.commit,
            file=ConfigFile(disk, DELAY_FILE, parse_delay_offsets),
            offload=call_directly,
            clock=self.clock,
            delay_levels_ms=config.delay_levels_ms,
        )

    def draft(
        self,
        body: bytes = b"body",
        *,
        topic: str = "T",
        queue_id: int = 0,
        tags: str = "",
        delay_level: int = 0,
        properties: dict[str, str] | None = None,
    ) -> RecordDraft:
        """Return a message as a send would store it now; makes its topic."""
        if self.topics.get(topic) is None:
            self.topics.put(TopicConfig(topic, 4, 4))
        said = dict(properties or {})
        if tags:
            said[names.TAGS] = tags
        if delay_level:
            said[names.DELAY] = str(delay_level)
        now_ms = self.clock.now_ms()
        placed = place(topic, queue_id, said, self.config.delay_levels_ms, now_ms)
        return RecordDraft(
            topic=placed.topic.encode(),
            queue_id=placed.queue_id,
            flag=0,
            sys_flag=0,
            born_at_ms=now_ms,
            born_host=PRODUCER,
            store_host=BROKER,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=body,
            properties=encode_properties(said),
            tags_code=placed.tags_code,
        )

    async def store_messages(self, drafts: Sequence[RecordDraft]) -> PutResult:
        """Store the messages and return their places once they are acknowledged."""
        result = await self.commit.put_and_wait(drafts, self.clock.now_ms())
        assert result.status is PutStatus.OK, result
        return result

    async def stop(self) -> None:
        """End cleanly, in the order of a broker, with all tables saved."""
        self.pulls.close()
        await self.delay.stop()
        await self.later.close()
        await self.commit.close()
        for table in (self.topics, self.groups, self.offsets, self.delay):
            await table.persist()
        self.store.close(self.clock.now_ms())
        self.flusher.close()

    def abandon(self) -> None:
        """End as a killed process ends: nothing more is written."""
        self.pulls.close()
        self.delay.abandon()
        self.later.abandon()
        self.commit.abandon()
        self.flusher.close()
        self.store.abandon()

    def _on_arrivals(self, arrivals: list[Arrival]) -> None:
        self.arrivals += arrivals
        self.pulls.on_arrivals(arrivals)
        self.delay.on_arrivals(arrivals)
