"""Putting messages into a closed store from outside, as its broker would have stored them.

Each message is appended to its topic and queue, in the order in which the rows come: ids, keys,
tags, properties and hosts stay, and the time it was stored, unless the store's last message is
later. Its offset is the queue's next. Topics are made known before their messages are written, so
that whatever is stored can be read. Where a row cannot be taken the import ends; what came before
it is stored.

A crash leaves a beginning of what was imported, recovered by the next start, and maybe a topic of
which nothing was stored yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from kourou.disk import Disk
from kourou.errors import InvalidMessageError, StoreError
from kourou.model.topic import TopicConfig
from kourou.protocol.bodies_topics import (
    DataVersion,
    TopicConfigTable,
    decode_topic_config_table,
    encode_topic_config_table,
)
from kourou.store.message_store import MessageStore
from kourou.store.paths import TOPICS
from kourou.store.state.config_file import ConfigFile
from kourou.store.tools.export import Row, to_draft
from kourou.store.tools.mending import config_of

_FREE_BYTES_MIN: Final = 32 * 1024 * 1024
"""Left of the device, so that the store can be closed, and opened again."""
_WRITE_BYTES: Final = 4 * 1024 * 1024
"""Appends that wait in memory for one write."""


@dataclass(slots=True)
class Imported:
    """What was stored.

    Attributes:
        messages: how many.
        queues: of each topic, one more than its highest queue id.
        new_topics: those that the store's table of topics lacked, and has now.
        grown_topics: those that had fewer queues to read from than the messages need, and have
            them now.
    """

    messages: int = 0
    queues: dict[str, int] = field(default_factory=dict)
    new_topics: list[str] = field(default_factory=list)
    grown_topics: list[str] = field(default_factory=list)


def import_messages(disk: Disk, rows: Iterable[Row], now_ms: int, *, pid: int) -> Imported:
    """Append the rows' messages, durably, and see to it that their topics are known.

    Args:
        disk: the store's; one is made if there is none. Nobody may have it open.
        rows: of the messages, in order. What reading them raises ends the import.
        now_ms: the time, for messages without one.
        pid: of this process.

    Raises:
        InvalidMessageError: a row breaks a limit; the text says which.
        StoreFullError: the disk is full; the store has what fitted.
        StoreError: the store cannot be opened or written.
    """
    config = replace(config_of(disk), free_bytes_min=_FREE_BYTES_MIN)
    store = MessageStore.open(disk, config, now_ms, pid=pid)
    done = Imported()
    try:
        topics = _Topics(disk, done, now_ms)
        try:
            _store_all(store, rows, topics, now_ms)
        except InvalidMessageError as error:
            text = f"{error}; the {done.messages:,} before it are stored"
            raise InvalidMessageError(text) from None
        finally:
            topics.save()
    except BaseException:
        with suppress(StoreError):  # what went wrong first is told; the next start recovers
            store.close(now_ms)
        raise
    store.close(now_ms)
    return done


def _store_all(store: MessageStore, rows: Iterable[Row], topics: _Topics, now_ms: int) -> None:
    """Append the rows' messages; the last of them wait in memory."""
    done, waiting = topics.done, 0
    for row in rows:
        waiting += store.append(to_draft(row), row["store_at_ms"] or now_ms).size
        done.messages += 1
        done.queues[row["topic"]] = max(done.queues.get(row["topic"], 0), row["queue_id"] + 1)
        if waiting >= _WRITE_BYTES:
            waiting = 0
            topics.save()
            store.dispatch(store.write())


class _Topics:
    """The table of topics that brokers serve, which is to know all that is imported.

    Args:
        disk: the store's, which is open.
        done: what was imported so far; is told which topics are new and which grew.
        now_ms: the time.

    Raises:
        CorruptRecordError: the table cannot be read.
    """

    def __init__(self, disk: Disk, done: Imported, now_ms: int) -> None:
        self.done = done
        self._now_ms = now_ms
        self._file = ConfigFile(disk, TOPICS, decode_topic_config_table)
        data = self._file.load()
        self._table = (
            TopicConfigTable({}, DataVersion(timestamp=now_ms))
            if data is None
            else decode_topic_config_table(data)
        )

    def save(self) -> None:
        """Make the topics known, durably; nothing is written if they are.

        Raises:
            OSError: they cannot be written.
        """
        done, known = self.done, self._table.topics
        changed: dict[str, TopicConfig] = {}
        for name, count in done.queues.items():
            topic = known.get(name)
            if topic is None or (name in done.new_topics and topic.write_queue_nums < count):
                changed[name] = TopicConfig(name, read_queue_nums=count, write_queue_nums=count)
            elif topic.read_queue_nums < count:  # producers go on with the queues they have
                changed[name] = replace(topic, read_queue_nums=count)
        if not changed:
            return
        version = self._table.data_version.next(self._now_ms)
        self._table = TopicConfigTable({**known, **changed}, version)
        self._file.save(encode_topic_config_table(self._table, pretty=True))
        new = {*done.new_topics, *(name for name in changed if name not in known)}
        done.new_topics = sorted(new)
        done.grown_topics = sorted({*done.grown_topics, *changed} - new)
