"""Imports messages into a closed store, as its broker would have stored them.

Each message is appended to its topic and queue, in the order of the rows. Ids, keys, tags,
properties and hosts are kept, and so is the store time unless the store's last message is later.
The message gets the queue's next offset. Topics are registered before their messages are written,
so that all stored messages can be read. The import stops at the first invalid row; messages before
it are stored.

A crash leaves the first part of the messages, which the next start recovers, and perhaps a topic
without messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from kourou.disk import Disk
from kourou.errors import InvalidMessageError, StoreError
from kourou.model.topic import TopicConfig
from kourou.protocol.data_version import DataVersion
from kourou.protocol.topic_table import (
    TopicConfigTable,
    decode_topic_config_table,
    encode_topic_config_table,
)
from kourou.store.message_store import MessageStore
from kourou.store.paths import TOPICS
from kourou.store.state.config_file import ConfigFile
from kourou.store.tools.closed_store import config_of
from kourou.store.tools.export import Row, to_draft

_FREE_BYTES_MIN: Final = 32 * 1024 * 1024
"""Space to leave on the device, so that the store can be closed and opened again."""
_WRITE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of appended messages that are written together."""


@dataclass(slots=True)
class ImportResult:
    """Result of an import.

    Attributes:
        messages: number of stored messages.
        queues: for each topic, its highest imported queue id plus one.
        new_topics: topics that were added to the topic table.
        grown_topics: existing topics whose number of read queues was raised.
    """

    messages: int = 0
    queues: dict[str, int] = field(default_factory=dict)
    new_topics: list[str] = field(default_factory=list)
    grown_topics: list[str] = field(default_factory=list)


def import_messages(disk: Disk, rows: Iterable[Row], now_ms: int, *, pid: int) -> ImportResult:
    """Append the rows' messages, durably, and register their topics.

    Args:
        disk: holds the store, which must be closed; created if it does not exist.
        rows: the messages, in order. An exception from the iterable ends the import.
        now_ms: the current time, used for messages without a store time.
        pid: of this process.

    Raises:
        InvalidMessageError: a row exceeds a limit, named in the text; earlier rows are stored.
        StoreFullError: the disk is full; earlier rows are stored.
        StoreError: the store cannot be opened or written.
    """
    config = replace(config_of(disk), free_bytes_min=_FREE_BYTES_MIN)
    store = MessageStore.open(disk, config, now_ms, pid=pid)
    result = ImportResult()
    try:
        topics = _Topics(disk, result, now_ms)
        try:
            _store_all(store, rows, topics, now_ms)
        except InvalidMessageError as error:
            text = f"{error}; messages stored before it: {result.messages:,}"
            raise InvalidMessageError(text) from None
        finally:
            topics.save()
    except BaseException:
        with suppress(StoreError):  # the first error is raised; the next start recovers
            store.close(now_ms)
        raise
    store.close(now_ms)
    return result


def _store_all(store: MessageStore, rows: Iterable[Row], topics: _Topics, now_ms: int) -> None:
    """Append the rows' messages; the last ones may not be written yet."""
    result, waiting = topics.result, 0
    for row in rows:
        waiting += store.writer.append(to_draft(row), row["store_at_ms"] or now_ms).size
        result.messages += 1
        result.queues[row["topic"]] = max(result.queues.get(row["topic"], 0), row["queue_id"] + 1)
        if waiting >= _WRITE_BYTES:
            waiting = 0
            topics.save()
            store.writer.dispatch(store.writer.write())


class _Topics:
    """Adds imported topics to the broker's topic table.

    Args:
        disk: holds the open store.
        result: the import so far; gets the new and grown topics.
        now_ms: the current time.

    Raises:
        CorruptRecordError: the table cannot be read.
    """

    def __init__(self, disk: Disk, result: ImportResult, now_ms: int) -> None:
        self.result = result
        self._now_ms = now_ms
        self._file = ConfigFile(disk, TOPICS, decode_topic_config_table)
        data = self._file.load()
        self._table = (
            TopicConfigTable({}, DataVersion(timestamp=now_ms))
            if data is None
            else decode_topic_config_table(data)
        )

    def save(self) -> None:
        """Register the imported topics, durably; writes nothing if the table has them.

        Raises:
            OSError: the table cannot be written.
        """
        result, topics = self.result, self._table.topics
        changed: dict[str, TopicConfig] = {}
        for name, count in result.queues.items():
            topic = topics.get(name)
            if topic is None or (name in result.new_topics and topic.write_queue_nums < count):
                changed[name] = TopicConfig(name, read_queue_nums=count, write_queue_nums=count)
            elif topic.read_queue_nums < count:  # producers keep the configured write queues
                changed[name] = replace(topic, read_queue_nums=count)
        if not changed:
            return
        version = self._table.data_version.next(self._now_ms)
        self._table = TopicConfigTable({**topics, **changed}, version)
        self._file.save(encode_topic_config_table(self._table, pretty=True))
        new = {*result.new_topics, *(name for name in changed if name not in topics)}
        result.new_topics = sorted(new)
        result.grown_topics = sorted({*result.grown_topics, *changed} - new)
