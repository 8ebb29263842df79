"""Table of the broker's topics: `config/topics.json`, and the creation of topics.

A topic is created by request, by the first send to it (`find_for_send`), or at start: these are the
system topics, with the queue numbers of RocketMQ. A change takes effect in memory at once.
`persist` makes it durable. `persist_and_announce` also waits until the name servers have it; a
handler awaits it before it answers a client that created a topic. Changes during a write of the
file are written together by the next one. The latest changes are also held separately, for
registration with name servers.

Source: TopicConfigManager.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kourou.broker.change_log import ChangeLog
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
from kourou.protocol.codes import ResponseCode
from kourou.protocol.data_version import DataVersion
from kourou.protocol.popping.topic_names import revive_topic
from kourou.protocol.topic_table import (
    TopicConfigTable,
    TopicTableEncoder,
    decode_topic_config_table,
)
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

FILE_NAME: Final = "config/topics.json"

TOPICS_MAX: Final = 25_000
"""Most topics. Producers create topics by sending to them, and the topics stay. This many fit into
a registration, which is one frame; with more, the registration could fail for all topics."""

CHANGES_MAX: Final = 1_000
"""Latest changes that are held; a name server that missed more is sent all topics."""

_READ_WRITE: Final = PERM_READ | PERM_WRITE
_SCHEDULE_QUEUES: Final = 18  # as in RocketMQ, whatever number of delay levels is configured


class Topics:
    """All topics of one broker. Held in memory; `persist` makes changes durable.

    Attributes:
        auto_create: whether a send to an unknown topic creates it; may change at any time.
        on_changed: called after each change; has the broker register with the name servers.
        on_topic_changed: called with the name of each topic that was changed or deleted.
        is_announced: returns whether all reachable name servers have the current topics.
        wait_announced: returns when that is so, after a bounded time at most.
        change_log: copies the changes to replicas; None without a controller, and on a slave.
    """

    def __init__(
        self,
        file: SavedFile,
        config: BrokerConfig,
        offload: Offload,
        clock: Clock,
    ) -> None:
        """Load the file, and add the system topics that it lacks.

        Args:
            file: read now; written by `persist`.
            config: names of the broker and its cluster, and the rules of automatic creation.
            offload: runs the writes off the event loop.
            clock: for the time of the data version.

        Raises:
            CorruptRecordError: neither the file nor its backup parses.
        """
        self.on_changed: Callable[[], None] = lambda: None
        self.on_topic_changed: Callable[[str], None] = lambda _name: None
        self.is_announced: Callable[[], bool] = lambda: True
        self.wait_announced: Callable[[], Awaitable[None]] = _no_name_servers
        self.change_log: ChangeLog | None = None
        self.auto_create = config.auto_create_topic_enable
        self._quota = config.host_quota(TOPICS_MAX)
        self._config = config
        self._clock = clock
        self._saver = ConfigSaver(file, self._encode, offload)
        self._table: dict[str, TopicConfig] = {}
        self._version = DataVersion(timestamp=clock.now_ms())
        self._change_number = 0
        self._dropped_change = 0  # number of the last change that `_changed` no longer holds
        self._changed: dict[str, int] = {}  # name -> number of its last change, oldest first
        self._unsaved: dict[str, int] = {}  # name -> number of its last unsaved change
        text = file.load()
        if text is not None:
            saved = decode_topic_config_table(text)
            self._version, self._table = saved.data_version, dict(saved.topics)
        self._text = TopicTableEncoder()
        for topic in self._table.values():
            self._text.put(topic)
        for topic in system_topics(config):
            if topic.name not in self._table:
                self._set(topic)
                self._saver.changed()
        self._enlarge_revive_topic()

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(list(self._table.values()))

    def __len__(self) -> int:
        return len(self._table)

    @property
    def data_version(self) -> DataVersion:
        """Version that counts the changes; a name server compares it with the version it has."""
        return self._version

    def table(self) -> TopicConfigTable:
        """Return a copy of the table with its version."""
        return TopicConfigTable(dict(self._table), self._version)

    def body(self, names: Iterable[str] | None = None) -> bytes:
        """Return the encoded table of all topics, or of `names`, with the version of the table."""
        return self._text.encode_body(self._version, names)

    def encode_registration(self) -> bytes:
        """Return the registration body of all topics; 25,000 topics take about 10 ms."""
        return self._text.encode_registration(self._version)

    @property
    def change_number(self) -> int:
        """The number of the last change since the start."""
        return self._change_number

    def changed_since(self, change: int) -> TopicConfigTable | None:
        """Return the current state of the topics changed after `change`, without deleted ones.

        The version is that of the whole table. None if some of these changes are no longer held.
        """
        if change < self._dropped_change:
            return None
        names = [name for name, at in self._changed.items() if at > change]
        topics = {name: self._table[name] for name in names if name in self._table}
        return TopicConfigTable(topics, self._version)

    def new_version(self) -> None:
        """Count a change of all topics, because their announced permissions changed."""
        self._change_number += 1
        self._changed.clear()
        self._dropped_change = self._change_number  # so that name servers are sent all topics
        self._version = self._version.next(self._clock.now_ms())
        self._saver.changed()

    def begin_role(self, master_epoch: int) -> None:
        """Count a change of all topics in a new role, decided in this epoch of the master.

        Name servers prefer the registration with the newest epoch.
        """
        if master_epoch > self._version.state_version:
            self._version = replace(self._version, state_version=master_epoch)
            self.new_version()

    def mark_ordered(self, names: Iterable[str]) -> None:
        """Mark the topics of a name server's order configuration as ordered; never unmark one.

        Source: TopicConfigManager.updateOrderTopicConfig.
        """
        for name in names:
            topic = self._table.get(name)
            if topic is not None and not topic.order:
                self.put(replace(topic, order=True))

    @property
    def by_name(self) -> Mapping[str, TopicConfig]:
        """Live view of all topics by name, which reflects later changes."""
        return self._table

    def get(self, name: str) -> TopicConfig | None:
        """Return the topic; None if it does not exist."""
        return self._table.get(name)

    def put(self, topic: TopicConfig, host: str | None = None) -> None:
        """Add or replace a topic. Putting an equal topic again changes nothing.

        Args:
            topic: the new settings.
            host: of the client that creates the topic by using it; None if it is not created so.

        Raises:
            RemoteSystemError: the topic is new, and `TOPICS_MAX` exist already or clients of
                `host` have used up their share.
        """
        is_new = topic.name not in self._table
        if is_new and not self._quota.has_room(host):
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"topic {topic.name} cannot be created: {self._quota.refusal(host)}",
            )
        self.put_all((topic,))
        if is_new:
            self._quota.add(topic.name, host)

    def put_all(self, topics: Sequence[TopicConfig]) -> None:
        """Add or replace all of the topics, or none.

        Raises:
            RemoteSystemError: there would be more than `TOPICS_MAX`.
        """
        new = {topic.name for topic in topics} - self._table.keys()
        if new and len(self._table) + len(new) > TOPICS_MAX:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"topic {min(new)} cannot be created: the broker has {len(self._table)} topics, "
                f"limit {TOPICS_MAX}; delete some",
            )
        for topic in topics:
            before = self._table.get(topic.name)
            if before == topic:
                continue
            self._set(topic)
            self._note_change(topic.name)
            if before is not None:
                self.on_topic_changed(topic.name)
            log.info(
                "topic.changed name=%s read_queues=%d write_queues=%d perm=%d",
                topic.name, topic.read_queue_nums, topic.write_queue_nums, topic.perm,
            )  # fmt: skip

    def delete(self, name: str) -> bool:
        """Remove a topic from the table, not its queues, and return whether it existed."""
        if self._table.pop(name, None) is None:
            return False
        self._text.remove(name)
        self._quota.remove(name)
        self._note_change(name)
        self.on_topic_changed(name)
        log.info("topic.deleted name=%s", name)
        return True

    def accepts_sends(self, name: str) -> bool:
        """Return whether clients may send to a topic of this name, whether it exists or not."""
        return not is_broker_only(name) or name == self._config.msg_trace_topic_name

    def delivery_queue(self, name: str, queue_id: int) -> int | None:
        """Return the queue for a delayed, scheduled or half message that is to be delivered.

        It is queue `queue_id`, or another one if the topic has fewer queues by now.

        Returns:
            None if nothing may be delivered to the topic: it does not exist, perhaps because it was
            deleted in the meantime, or only the broker stores records in it, so that the record is
            forged.
        """
        topic = self._table.get(name)
        if topic is None or name in names.NON_DESTINATION_TOPICS:
            return None
        return queue_id % max(1, topic.read_queue_nums, topic.write_queue_nums)

    def find_for_send(
        self, name: str, default_topic: str, queue_nums: int, *, is_unit: bool
    ) -> TopicConfig | None:
        """Return the topic, or the one that a send may create; None if it may create none.

        Nothing is created here: `ensure` does that once the send has passed all checks.

        The new topic gets the settings of `default_topic`, which must exist and have PERM_INHERIT.
        `TBW102` counts as without it while `auto_create` is off. A retry topic may always be
        created.

        Args:
            name: a valid name.
            default_topic: the topic to inherit from; clients name `TBW102`.
            queue_nums: the number of queues that the client asks for; limited to the write queues
                of `default_topic`.
            is_unit: whether the client runs in unit mode, in one unit of a deployment of several.
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
        # Java accepts 0, which creates a topic without queues, to which no client can send.
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
        """Create the topic unless one of its name exists; `host` is as for `put`.

        Raises:
            RemoteSystemError: as `put`.
        """
        if topic.name not in self._table:
            self.put(topic, host)

    def is_saved(self, name: str) -> bool:
        """Return whether the topic is as durable as `persist` makes it."""
        return name in self._table and name not in self._unsaved

    async def persist(self) -> None:
        """Write the file if the table changed. On return all earlier changes are durable.

        With a `change_log` the in-sync replicas have them too.

        Raises:
            OSError: the file could not be written; it is unchanged.
            ChangeNotCopiedError: not all replicas have the changes; an OSError as well.
        """
        change = self._change_number
        await self._saver.save()
        if self.change_log is not None:
            await self.change_log.flush()
        self._unsaved = {name: at for name, at in self._unsaved.items() if at > change}

    async def persist_and_announce(self) -> None:
        """Return when the changes are durable and the reachable name servers have them.

        The wait for the name servers is bounded, see `Registration.wait_announced`.

        Raises:
            OSError: as `persist`.
        """
        await self.persist()
        await self.wait_announced()

    def _may_inherit(self, pattern: TopicConfig) -> bool:
        if pattern.name == names.AUTO_CREATE_TOPIC and not self.auto_create:
            return False  # the file may hold PERM_INHERIT from the time when it was on
        return is_inherited(pattern.perm)

    def _enlarge_revive_topic(self) -> None:
        """Add queues to the revive topic if `reviveQueueNum` was raised; never remove any.

        Queues beyond a lower number may still hold checkpoints.
        """
        count = self._config.pop.revive_queue_num
        topic = self._table[revive_topic(self._config.cluster_name)]
        if min(topic.read_queue_nums, topic.write_queue_nums) >= count:
            return
        larger = replace(
            topic,
            read_queue_nums=max(topic.read_queue_nums, count),
            write_queue_nums=max(topic.write_queue_nums, count),
        )
        self._set(larger)
        self._note_change(larger.name)

    def _set(self, topic: TopicConfig) -> None:
        self._table[topic.name] = topic
        self._text.put(topic)

    def _note_change(self, name: str) -> None:
        self._change_number += 1
        self._changed.pop(name, None)
        self._changed[name] = self._change_number
        if len(self._changed) > CHANGES_MAX:
            oldest = next(iter(self._changed))
            self._dropped_change = self._changed.pop(oldest)
        self._unsaved[name] = self._change_number
        if self.change_log is not None:
            self.change_log.note_topic(name)
        self._version = self._version.next(self._clock.now_ms())
        self._saver.changed()
        self.on_changed()

    def _encode(self) -> TextParts:
        # One part is enough: the text of each topic is encoded already, so this takes a few ms.
        return (self._text.encode(self._version),)


async def _no_name_servers() -> None:
    """Default of `Topics.wait_announced`, until the broker registers with name servers."""


def system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """Return the topics that RocketMQ creates at the first start of a broker."""
    cluster, broker = config.cluster_name, config.broker_name
    topics = [
        _system_topic(names.SELF_TEST_TOPIC, 1),
        _system_topic(names.BENCHMARK_TOPIC, 1024),
        _system_topic(cluster, 16, _READ_WRITE | PERM_INHERIT),
        _system_topic(broker, 1, _READ_WRITE | PERM_INHERIT),
        _system_topic(names.OFFSET_MOVED_EVENT, 1),
        _system_topic(names.SCHEDULE_TOPIC, _SCHEDULE_QUEUES),
        _system_topic(names.reply_topic(cluster), 1),
        _system_topic(revive_topic(cluster), config.pop.revive_queue_num),
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
    if config.controller.enable_controller_mode:
        topics.append(_system_topic(names.TABLES_TOPIC, 1))
    if config.trace_topic_enable:
        topics.append(_system_topic(config.msg_trace_topic_name, 1))
    return topics


def _system_topic(name: str, queue_nums: int, perm: int = _READ_WRITE) -> TopicConfig:
    return TopicConfig(name, queue_nums, queue_nums, perm)
