"""Shared parts of the fast paths of sends and batches: caches, and sends in the group commit.

The caches hold the data needed for each message. They are bounded, and invalidated when an option,
a topic or a connection changes.

Source: see `kourou.broker.sending.send`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import ClassVar, Final, NamedTuple, Protocol

from kourou.broker.config import BrokerConfig
from kourou.broker.context import BrokerContext
from kourou.broker.message_type import NORMAL
from kourou.broker.sending.send_answers import SendAnswers, region_properties
from kourou.broker.sending.verdicts import (
    is_unchanged_flag,
    queue_refusal,
    storage_refusal,
    topic_refusal,
)
from kourou.broker.statistics.stats import BrokerStats
from kourou.broker.topic_attributes import has_batch_queues
from kourou.broker.transactions.plain_halves import HalfTarget, half_target
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.clock import Clock
from kourou.decimals import is_decimal
from kourou.errors import InvalidMessageError
from kourou.model import properties as names
from kourou.model.host import Host, pack_address
from kourou.model.msgid import encode_offset_msg_id
from kourou.model.properties import encode_properties
from kourou.model.topic import TopicConfig, is_retry_topic
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import decode_frame, encode_frame
from kourou.protocol.record.layout import TOPIC_SIZE_V1_MAX, topic_field
from kourou.protocol.sending import SendMessageResponseHeader
from kourou.remoting.connection import Connection
from kourou.store.message_store import AppendedRecord

log = logging.getLogger(__name__)

_DIGITS_MAX: Final = 9
_QUEUE_DIGITS_MAX: Final = 4
_TOPICS_MAX: Final = 32_768
_FLAGS_MAX: Final = 64
_ANSWERS_MAX: Final = 4096
_ID_PREFIX_CHARS: Final = 16
_IPV4_BYTES: Final = 4

# Placeholders in a sample answer for the values that differ; see `SendCache.answer_parts`.
_MSG_ID: Final = "M" * 32
_OFFSET: Final = 7_171_717_171_717_171
_UNIQUE_ID: Final = "U" * 32
_OPAQUE: Final = 1_717_171_717


class CachedTopic:
    """A topic that the fast paths may store messages for.

    Attributes:
        config: the `Topics` entry this was built from; the cache is void once that is another
            object.
        topic_bytes: size and name of the topic as encoded in a record.
        queues: text of a queue id -> (id, key in `SealedRun.queues`).
        halves: queue id -> the values shared by half messages for that queue.
    """

    __slots__ = ("config", "halves", "queues", "topic_bytes")

    def __init__(self, config: TopicConfig) -> None:
        encoded = config.name.encode()
        self.config = config
        self.topic_bytes = topic_field(encoded)
        self.queues: dict[str, tuple[int, tuple[bytes, int]]] = {}
        self.halves: dict[int, HalfTarget] = {}

    def add_half(self, queue_id: int) -> HalfTarget:
        """Cache and return the values shared by half messages for a queue."""
        target = self.halves[queue_id] = half_target(self.config, queue_id)
        return target

    def queue(self, text: str) -> tuple[int, tuple[bytes, int]] | None:
        """Return the cached queue with that id, else as `add_queue`."""
        return self.queues.get(text) or self.add_queue(text)

    def add_queue(self, text: str) -> tuple[int, tuple[bytes, int]] | None:
        """Return the queue with that id; None if it does not exist or the text is not canonical."""
        if not is_number(text, _QUEUE_DIGITS_MAX):
            return None
        queue_id = int(text)
        if queue_refusal(self.config, queue_id) is not None:
            return None
        queue = self.queues[text] = (queue_id, (self.topic_bytes[1:], queue_id))
        return queue


AnswerParts = tuple[str, str, str, str, str]
"""The constant texts of an answer: before the message ids, from there to the queue offset, to the
unique id, to the opaque, and to the end."""


class CachedPeer(NamedTuple):
    """Values of records and answers that depend on a producer's connection.

    Attributes:
        born_address, born_port: the records' born host.
        store_address, store_port: the records' store host: the broker's address for this peer.
        id_prefix: the broker's part of message ids.
        answers: by queue id; see `SendCache.answer_parts`.
    """

    born_address: bytes
    born_port: int
    store_address: bytes
    store_port: int
    id_prefix: str
    answers: dict[int, AnswerParts]


class SendPath(Protocol):
    """A fast path that stores sends: its answers, statistics and clock, `GroupCommit.copies`."""

    @property
    def answers(self) -> SendAnswers: ...

    @property
    def copies(self) -> int: ...

    @property
    def stats(self) -> BrokerStats: ...

    @property
    def clock(self) -> Clock: ...


class PlainSends:
    """Sends that pass through the group commit together; a `Waiter`.

    They come from one read, or from several reads of one loop iteration and as many connections.

    Attributes:
        records: the stored records.
        kinds: index in `records` -> message type, for messages that are not normal; None for none.
        owner_sizes: see `Waiter`.
        reads: (connection, answers if all goes well, bytes of the request frames) of each read.
    """

    __slots__ = (
        "_copies",
        "_is_done",
        "_path",
        "began_ms",
        "deadline_s",
        "end",
        "kinds",
        "owner_sizes",
        "puts",
        "reads",
        "records",
        "size",
        "waits_for_sync",
    )

    # Set by `follow`; see `Waiter`.
    end: int
    size: int
    puts: int
    deadline_s: float
    waits_for_sync: bool
    waits_for_copies: ClassVar[bool] = True

    def __init__(self, path: SendPath, began_ms: int) -> None:
        self.began_ms = began_ms
        self.reads: list[tuple[Connection, list[bytes], int]] = []
        self.owner_sizes: list[tuple[Hashable, int]] = []
        self.records: list[AppendedRecord] = []
        self.kinds: dict[int, str] | None = None
        self._path = path
        self._copies = path.copies  # as the answers state it
        self._is_done = False

    def follow(self, commit: GroupCommit, end: int, size: int, puts: int) -> None:
        """Enter the group commit; no send may be added afterwards.

        Args:
            commit: writes the records and reports the result.
            end: log position after the last record.
            size: bytes of all records, the sum of `owner_sizes`.
            puts: number of answers.
        """
        self.end = end
        self.size = size
        self.puts = puts
        # Counted from now: the frames may have been buffered while their peers did not read.
        self.deadline_s = commit.deadline_s()
        self.waits_for_sync = commit.is_sync_mode
        commit.commit_appended(self)

    def note_kind(self, kind: str) -> None:
        """Note that the next entry of `records` is not a normal message."""
        if self.kinds is None:
            self.kinds = {}
        self.kinds[len(self.records)] = kind

    def stored(self) -> None:
        """Acknowledge all sends, with one write to each connection."""
        is_unchanged = self._path.copies == self._copies
        self._end(b"".join if is_unchanged else self._copied, self._count)

    def late(self, status: PutStatus, reason: str) -> None:
        """Answer all sends that the sync, or the copies, did not end in time."""
        self._end(partial(self._late, status, reason), self._count)

    def answer(self, result: PutResult) -> None:
        """Refuse all sends."""
        self._end(partial(self._refused, result), self._count_failed)

    def _end(self, answers: Callable[[list[bytes]], bytes], count: Callable[[], None]) -> None:
        """Send the answers, and count the sends; only the first call has an effect."""
        if self._is_done:
            return
        self._is_done = True
        for connection, replies, request_bytes in self.reads:
            connection.unanswered.remove(request_bytes, len(replies))
            try:
                connection.send_now(answers(replies))
            except Exception:  # a failure for one producer must not affect the others
                log.exception("put.reply_failed")
        try:
            count()
        except Exception:  # a failing counter must not fail the sends
            log.exception("put.count_failed")

    def _copied(self, replies: list[bytes]) -> bytes:
        """Return the answers with another number of copies than when the records were appended."""
        answers, copies = self._path.answers, self._path.copies
        return b"".join(
            encode_frame(answers.copied(decode_frame(frame[4:]), copies, waits=self.waits_for_sync))
            for frame in replies
        )

    def _late(self, status: PutStatus, reason: str, replies: list[bytes]) -> bytes:
        answers = self._path.answers
        late = [answers.late(decode_frame(frame[4:]), status, reason) for frame in replies]
        return b"".join(map(encode_frame, late))

    def _refused(self, result: PutResult, replies: list[bytes]) -> bytes:
        sends = [
            RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque=decode_frame(frame[4:]).opaque)
            for frame in replies
        ]
        refused = [self._path.answers.refused(send, result.status, result.reason) for send in sends]
        return b"".join(map(encode_frame, refused))

    def _count_failed(self) -> None:
        for _ in range(self.puts):
            self._path.stats.on_put_failed()

    def _count(self) -> None:
        took_ms = self._path.clock.now_ms() - self.began_ms
        stats, kinds = self._path.stats, self.kinds
        if kinds is None:
            stats.on_single_puts(self.records, took_ms)
            return
        for index, record in enumerate(self.records):
            kind = kinds.get(index, NORMAL)
            stats.on_put(record.topic, record.queue_id, kind, 1, record.size, took_ms)


class SendCache:
    """Cache of a fast path: options, topics, numbers and peers.

    Attributes:
        config, copies: the options, and the number of copies, for which the cache is valid.
        answers: builds the answers to producers.
        suffix: the properties that the broker adds to each message, encoded.
        topics: topic name -> topic the fast paths may store messages for; see `topic`.
        sys_flags: text -> system flag; see `sys_flag`.
        numbers: texts that are numbers; see `check_number`.
        peers: by connection; None for one that is not IPv4; see `add_peer`.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._topics = context.topics
        self._commit = context.commit
        self._store_host = context.store_host
        self.peers: dict[Connection, CachedPeer | None] = {}
        self._answers_of: dict[Host, dict[int, AnswerParts]] = {}
        self.reset(context.live_config.current)

    def reset(self, config: BrokerConfig) -> None:
        """Drop all cached data except peers, and use other options."""
        self.config = config
        self.copies = self._commit.copies
        region = region_properties(config)
        self.answers = SendAnswers(region)
        self.suffix = encode_properties({**region, names.CLUSTER: config.cluster_name})
        for answers in self._answers_of.values():
            answers.clear()
        self.topics: dict[str, CachedTopic] = {}
        self.sys_flags: dict[str, int] = {}
        self.numbers: set[str] = set()

    def is_outdated(self, config: BrokerConfig) -> bool:
        """Return whether the options or the number of copies have changed."""
        return config is not self.config or self._commit.copies != self.copies

    def add_peer(self, connection: Connection) -> CachedPeer | None:
        """Cache and return the values of a new connection; None if it is not IPv4."""
        peer = self.peer(connection.remote_address, connection.local_address)
        self.peers[connection] = peer
        connection.on_closed.append(self._remove_peer)
        return peer

    def peer(self, born_host: Host, address: Host) -> CachedPeer | None:
        """Return the values of a producer; None if it is not IPv4.

        Args:
            born_host: the producer's address.
            address: the broker's, to which the producer is connected.
        """
        store_host = self._store_host or address
        try:
            born, store = pack_address(born_host[0]), pack_address(store_host[0])
        except InvalidMessageError:
            return None
        if not len(born) == len(store) == _IPV4_BYTES:
            return None
        id_prefix = encode_offset_msg_id(store_host, 0)[:_ID_PREFIX_CHARS]
        answers = self._answers_of.setdefault(store_host, {})
        return CachedPeer(born, born_host[1], store, store_host[1], id_prefix, answers)

    def _remove_peer(self, connection: Connection) -> None:
        self.peers.pop(connection, None)

    def valid_topic(self, name: str) -> CachedTopic | None:
        """Return the cached topic if its `Topics` entry is still the same, else as `topic`."""
        topic = self.topics.get(name)
        if topic is not None and self._topics.by_name.get(name) is topic.config:
            return topic
        return self.topic(name)

    def topic(self, name: str) -> CachedTopic | None:
        """Cache and return the topic if the fast paths may store messages for it now."""
        config = self._topics.get(name)
        if (
            config is None
            or not self._topics.is_saved(name)
            or not self._topics.accepts_sends(name)
            or is_retry_topic(name)
            or has_batch_queues(config)
            or storage_refusal(config) is not None
            or topic_refusal(config, self.config) is not None
            or queue_refusal(config, 0) is not None
            or len(name.encode()) > TOPIC_SIZE_V1_MAX
        ):
            return None
        if len(self.topics) >= _TOPICS_MAX:  # deleted topics are not removed one by one
            self.topics.clear()
        topic = self.topics[name] = CachedTopic(config)
        return topic

    def sys_flag(self, text: str) -> int | None:
        """Return the flag if it has no bits but those of compression, tags and half messages."""
        if not is_number(text, _DIGITS_MAX):
            return None
        if not is_unchanged_flag(int(text), self.config, is_half=True):
            return None
        if len(self.sys_flags) < _FLAGS_MAX:
            self.sys_flags[text] = int(text)
        return int(text)

    def check_number(self, text: str) -> bool:
        """Return whether the text is a number in canonical form, and cache it."""
        if not is_number(text, _DIGITS_MAX):
            return False
        if len(self.numbers) < _FLAGS_MAX:
            self.numbers.add(text)
        return True

    def answer_parts(self, peer: CachedPeer, queue_id: int) -> AnswerParts:
        """Cache and return the constant texts of answers for a queue, cut from a sample answer."""
        header = SendMessageResponseHeader(_MSG_ID, queue_id, _OFFSET, _UNIQUE_ID)
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque=_OPAQUE)
        sample = self.answers.stored(
            command,
            PutStatus.OK,
            "",
            header,
            waits=self._commit.is_sync_mode,
            copies=self.copies,
        )
        to_ids, _, rest = encode_frame(sample)[8:].decode().partition(_MSG_ID)
        to_offset, _, rest = rest.partition(str(_OFFSET))
        to_unique_id, _, rest = rest.partition(_UNIQUE_ID)
        to_opaque, found, to_end = rest.partition(str(_OPAQUE))
        assert found, "the answer has these fields in this order"
        if len(peer.answers) >= _ANSWERS_MAX:
            peer.answers.clear()
        parts = peer.answers[queue_id] = (to_ids, to_offset, to_unique_id, to_opaque, to_end)
        return parts


def is_number(text: str, digits_max: int) -> bool:
    """Return whether the text is a non-negative number as Java writes it."""
    return is_decimal(text, digits_max) and (text[0] != "0" or text == "0")
