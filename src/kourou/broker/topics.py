"""The topics that the broker serves: `config/topics.json`, and how a topic comes to be.

A topic is made by request, on the first send to it (`for_send`), or at start: those are the
system's own, with the queues that RocketMQ gives them. A change is in memory at once; `persist`
makes it durable, `settle` waits for the name servers besides: whoever tells a client of a new topic
waits for that. Changes that come while a write is under way share the next one; the latest are also
kept apart, for name servers.

Source: TopicConfigManager.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kourou.broker.config import BrokerConfig
from kourou.broker.config_saver import ConfigSaver, SavedFile, TextParts
from kourou.clock import Clock
from kourou.errors import RemoteSystemError
from kourou.model import topic as names
from kourou.model.topic import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    TopicConfig,
    is_broker_only,
    is_inherited,
    is_retry_topic,
)
from kourou.protocol.bodies import (
    DataVersion,
    TopicConfigTable,
    decode_topic_config_table,
)
from kourou.protocol.codes import ResponseCode
from kourou.protocol.topic_table_text import TopicTableText
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

FILE_NAME: Final = "config/topics.json"

TOPICS_MAX: Final = 25_000
"""Topics that a broker may have: producers make them by naming them, and they stay. So many fit
into a registration, which is one frame; more could cost all of them their route."""

CHANGES_MAX: Final = 1_000
"""Latest changes that are kept apart; who missed more is told of all topics."""

_READ_WRITE: Final = PERM_READ | PERM_WRITE
_SCHEDULE_QUEUES: Final = 18  # in RocketMQ too, however many delay levels are configured


class Topics:
    """All topics of one broker. In memory; `persist` makes changes durable.

    Attributes:
        auto_create: whether a send to an unknown topic makes it; may change at any time.
        on_changed: called after each change, to tell the name servers.
        is_told: whether they have been told, or cannot be.
        told: returns when that is so; waits for a bounded time.
    """

    def __init__(
        self,
        file: SavedFile,
        config: BrokerConfig,
        offload: Offload,
        clock: Clock,
    ) -> None:
        """Start with what the file says, and with the system's topics where it lacks them.

        Args:
            file: read now; written by `persist`.
            config: names of the broker and its cluster, and the rules of automatic creation.
            offload: takes the writes off the loop.
            clock: for the time of the data version.

        Raises:
            CorruptRecordError: neither the file nor its backup parses.
        """
        self.on_changed: Callable[[], None] = lambda: None
        self.is_told: Callable[[], bool] = lambda: True
        self.told: Callable[[], Awaitable[None]] = _nobody_to_tell
        self.auto_create = config.auto_create_topic_enable
        self._shares = config.shares_of(TOPICS_MAX)
        self._config = config
        self._clock = clock
        self._saver = ConfigSaver(file, self._take, offload)
        self._table: dict[str, TopicConfig] = {}
        self._version = DataVersion(timestamp=clock.now_ms())
        self._change = 0
        self._forgotten = 0  # number of the last change that `_changed` no longer holds
        self._changed: dict[str, int] = {}  # name -> number of its last change, oldest first
        self._unsaved: dict[str, int] = {}  # name -> number of the change that made or removed it
        text = file.load()
        if text is not None:
            saved = decode_topic_config_table(text)
            self._version, self._table = saved.data_version, dict(saved.topics)
        self._text = TopicTableText()
        for topic in self._table.values():
            self._text.put(topic)
        for topic in system_topics(config):
            if topic.name not in self._table:
                self._set(topic)
                self._saver.changed()

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(list(self._table.values()))

    def __len__(self) -> int:
        return len(self._table)

    @property
    def data_version(self) -> DataVersion:
        """Counts the changes, so that name servers see whether they know the newest."""
        return self._version

    def table(self) -> TopicConfigTable:
        """Return all topics by name, as they are now, and their version."""
        return TopicConfigTable(dict(self._table), self._version)

    def body(self, names: Iterable[str] | None = None) -> bytes:
        """Return the body of all topics, or of those of `names`, with the version of all."""
        return self._text.encode_body(self._version, names)

    def registration(self) -> bytes:
        """Return what tells a name server all topics: of 25,000 in some 10 ms."""
        return self._text.encode_registration(self._version)

    @property
    def change(self) -> int:
        """The number of the last change since the start."""
        return self._change

    def changed_since(self, change: int) -> TopicConfigTable | None:
        """Return the topics changed after that change, as they are now; deleted ones are missing.

        The version is that of all topics. None: more has changed than is kept apart.
        """
        if change < self._forgotten:
            return None
        names = [name for name, at in self._changed.items() if at > change]
        topics = {name: self._table[name] for name in names if name in self._table}
        return TopicConfigTable(topics, self._version)

    def new_version(self) -> None:
        """Count a change of all topics: what routes show of them has changed."""
        self._change += 1
        self._changed.clear()
        self._forgotten = self._change  # so that name servers are told all of them
        self._version = self._version.next(self._clock.now_ms())
        self._saver.changed()

    def note_ordered(self, names: Iterable[str]) -> None:
        """Mark topics as ordered, as a name server's order configuration tells; never unmark one.

        Source: TopicConfigManager.updateOrderTopicConfig.
        """
        for name in names:
            topic = self._table.get(name)
            if topic is not None and not topic.order:
                self.put(replace(topic, order=True))

    @property
    def by_name(self) -> Mapping[str, TopicConfig]:
        """All topics as they are now, and will be: it changes as they do."""
        return self._table

    def get(self, name: str) -> TopicConfig | None:
        """Return the topic; None when the broker does not have it."""
        return self._table.get(name)

    def put(self, topic: TopicConfig, host: str | None = None) -> None:
        """Add or replace a topic. The same again changes nothing.

        Args:
            topic: as it is to be.
            host: that of the client which makes it by using it; None for others.

        Raises:
            RemoteSystemError: it is new, and there are `TOPICS_MAX` already, or clients of `host`
                have made their share.
        """
        is_new = topic.name not in self._table
        if is_new and not self._shares.has_room(host):
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"topic {topic.name} cannot be made: {self._shares.refusal(host)}",
            )
        self.put_all((topic,))
        if is_new:
            self._shares.add(topic.name, host)

    def put_all(self, topics: Sequence[TopicConfig]) -> None:
        """Add or replace topics: all, or none.

        Raises:
            RemoteSystemError: there would be more than `TOPICS_MAX`.
        """
        new = {topic.name for topic in topics} - self._table.keys()
        if new and len(self._table) + len(new) > TOPICS_MAX:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"topic {min(new)} cannot be made: the broker has {len(self._table)}, limit "
                f"{TOPICS_MAX}; delete some",
            )
        for topic in topics:
            if self._table.get(topic.name) == topic:
                continue
            self._set(topic)
            self._note_change(topic.name)
            log.info(
                "topic.changed name=%s read_queues=%d write_queues=%d perm=%d",
                topic.name, topic.read_queue_nums, topic.write_queue_nums, topic.perm,
            )  # fmt: skip

    def delete(self, name: str) -> bool:
        """Remove a topic, and return whether there was one. Its queues are the store's business."""
        if self._table.pop(name, None) is None:
            return False
        self._text.remove(name)
        self._shares.remove(name)
        self._note_change(name)
        log.info("topic.deleted name=%s", name)
        return True

    def is_open(self, name: str) -> bool:
        """Return whether clients may send to a topic of this name, if there is one."""
        return not is_broker_only(name) or name == self._config.msg_trace_topic_name

    def delivery_queue(self, name: str, queue_id: int) -> int | None:
        """Return the queue that takes a record which waited for a time, or for its commit.

        It is the one that the record names, or another one if the topic has fewer queues by now.

        Returns:
            None: nothing is delivered to the topic. It does not exist (it may have been deleted
            meanwhile), or only the broker stores records there: such a record is forged.
        """
        topic = self._table.get(name)
        if topic is None or name in names.UNDELIVERED_TOPICS:
            return None
        return queue_id % max(1, topic.read_queue_nums, topic.write_queue_nums)

    def for_send(
        self, name: str, default_topic: str, queue_nums: int, *, is_unit: bool
    ) -> TopicConfig | None:
        """Return the topic, or the one that a send may make; None if it may make none.

        Nothing is made here: `ensure` does it once the send has passed all checks.

        A topic that somebody sends to is made after the pattern of `default_topic`, when that
        exists and has PERM_INHERIT (with `auto_create_topic_enable` off, `TBW102` has it not). A
        retry topic is made in any case.

        Args:
            name: a valid name.
            default_topic: the pattern; clients name `TBW102`.
            queue_nums: how many queues the client would like; at most those of the pattern.
            is_unit: the client sends for one unit of a deployment in several.
        """
        topic = self._table.get(name)
        if topic is not None:
            return topic
        if is_retry_topic(name):
            flag = names.TOPIC_UNIT_SUB if is_unit else 0
            return TopicConfig(name, 1, 1, _READ_WRITE, topic_sys_flag=flag)
        pattern = self._table.get(default_topic)
        if pattern is None or not self._may_inherit(pattern):
            return None
        # Java lets 0 pass, which makes a topic that nobody can ever send to.
        count = max(1, min(queue_nums, pattern.write_queue_nums))
        return TopicConfig(
            name,
            count,
            count,
            pattern.perm & ~PERM_INHERIT,
            pattern.topic_filter_type,
            names.TOPIC_UNIT if is_unit else 0,
        )

    def ensure(self, topic: TopicConfig, host: str | None = None) -> None:
        """Make the topic, unless there is one of its name; `host` as for `put`.

        Raises:
            RemoteSystemError: as `put`.
        """
        if topic.name not in self._table:
            self.put(topic, host)

    def is_saved(self, name: str) -> bool:
        """Return whether the topic is in the file, so that it will outlive a crash."""
        return name in self._table and name not in self._unsaved

    async def persist(self) -> None:
        """Write the file if something changed; when this returns, it is durable.

        Raises:
            OSError: the file could not be written; it is as it was.
        """
        change = self._change
        await self._saver.save()
        self._unsaved = {name: at for name, at in self._unsaved.items() if at > change}

    async def settle(self) -> None:
        """Return when the changes are durable and the name servers know them, if they can be told.

        Raises:
            OSError: as `persist`.
        """
        await self.persist()
        await self.told()

    def _may_inherit(self, pattern: TopicConfig) -> bool:
        if pattern.name == names.AUTO_CREATE_TOPIC and not self.auto_create:
            return False  # a file from before it was switched off may still say it may
        return is_inherited(pattern.perm)

    def _set(self, topic: TopicConfig) -> None:
        self._table[topic.name] = topic
        self._text.put(topic)

    def _note_change(self, name: str) -> None:
        self._change += 1
        self._changed.pop(name, None)
        self._changed[name] = self._change
        if len(self._changed) > CHANGES_MAX:
            oldest = next(iter(self._changed))
            self._forgotten = self._changed.pop(oldest)
        self._unsaved[name] = self._change
        self._version = self._version.next(self._clock.now_ms())
        self._saver.changed()
        self.on_changed()

    def _take(self) -> TextParts:
        return (self._text.encode(self._version),)  # of texts that are there: some ms at most


async def _nobody_to_tell() -> None:
    """Stand for the name servers until the broker registers."""


def system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """Return the topics that a broker has from its first start, as RocketMQ makes them."""
    cluster, broker = config.cluster_name, config.broker_name
    topics = [
        _system_topic(names.SELF_TEST_TOPIC, 1),
        _system_topic(names.BENCHMARK_TOPIC, 1024),
        _system_topic(cluster, 16, _READ_WRITE | PERM_INHERIT),
        _system_topic(broker, 1, _READ_WRITE | PERM_INHERIT),
        _system_topic(names.OFFSET_MOVED_EVENT, 1),
        _system_topic(names.SCHEDULE_TOPIC, _SCHEDULE_QUEUES),
        _system_topic(names.reply_topic(cluster), 1),
        _system_topic(f"{names.SYSTEM_PREFIX}REVIVE_LOG_{cluster}", 8),
        _system_topic(f"{names.SYSTEM_PREFIX}SYNC_BROKER_MEMBER_{broker}", 1, PERM_INHERIT),
        _system_topic(names.TRANS_HALF_TOPIC, 1),
        _system_topic(names.TRANS_OP_HALF_TOPIC, 1),
        _system_topic(names.ROCKSDB_TRANS_HALF_TOPIC, 1),
        _system_topic(names.ROCKSDB_TRANS_OP_HALF_TOPIC, 1),
        _system_topic(f"{names.SYSTEM_PREFIX}wheel_timer", 1),
    ]
    if config.auto_create_topic_enable:
        count = config.default_topic_queue_nums
        topics.append(_system_topic(names.AUTO_CREATE_TOPIC, count, _READ_WRITE | PERM_INHERIT))
    if config.trace_topic_enable:
        topics.append(_system_topic(config.msg_trace_topic_name, 1))
    return topics


def _system_topic(name: str, queue_nums: int, perm: int = _READ_WRITE) -> TopicConfig:
    return TopicConfig(name, queue_nums, queue_nums, perm)
