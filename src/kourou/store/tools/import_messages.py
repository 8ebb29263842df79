"""Putting messages into a closed store from outside, as its broker would have stored them.

Each message is appended to its topic and queue, in the order in which the rows come: ids, keys,
tags, properties and hosts stay, and the time it was stored, unless the store's last message is
later. Its offset is the queue's next. Where a row cannot be taken the import ends; what came before
it is stored.

A crash leaves a beginning of what was imported, recovered by the next start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kourou.disk import Disk
from kourou.errors import InvalidMessageError
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
from kourou.store.tools.mending import config_of, locked

_WRITE_BYTES: Final = 4 * 1024 * 1024
"""Appends that wait in memory for one write."""


@dataclass(slots=True)
class Imported:
    """What was stored.

    Attributes:
        messages: how many.
        queues: of each topic, one more than its highest queue id.
        new_topics: those that the store's table of topics lacked, and has now.
    """

    messages: int = 0
    queues: dict[str, int] = field(default_factory=dict)
    new_topics: list[str] = field(default_factory=list)


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
    store = MessageStore.open(disk, config_of(disk), now_ms, pid=pid)
    done = Imported()
    waiting = 0
    try:
        for row in rows:
            waiting += store.append(to_draft(row), row["store_at_ms"] or now_ms).size
            done.messages += 1
            done.queues[row["topic"]] = max(done.queues.get(row["topic"], 0), row["queue_id"] + 1)
            if waiting >= _WRITE_BYTES:
                waiting = 0
                store.dispatch(store.write())
    except InvalidMessageError as error:
        raise InvalidMessageError(f"{error}; the {done.messages:,} before it are stored") from None
    finally:
        store.close(now_ms)
        with locked(disk):
            done.new_topics = _add_topics(disk, done.queues, now_ms)
    return done


def _add_topics(disk: Disk, queues: dict[str, int], now_ms: int) -> list[str]:
    """Add the topics to the table that brokers serve, where it lacks them; return their names."""
    file = ConfigFile(disk, TOPICS, decode_topic_config_table)
    data = file.load()
    table = (
        TopicConfigTable({}, DataVersion(timestamp=now_ms))
        if data is None
        else decode_topic_config_table(data)
    )
    new = {
        name: TopicConfig(name, read_queue_nums=count, write_queue_nums=count)
        for name, count in queues.items()
        if name not in table.topics
    }
    if new:
        version = table.data_version.next(now_ms)
        topics = {**table.topics, **new}
        file.save(encode_topic_config_table(TopicConfigTable(topics, version), pretty=True))
    return sorted(new)
