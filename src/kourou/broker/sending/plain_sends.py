"""What the paths of plain sends and of plain batches share: what they know, and who waits.

What is asked for each message is kept ready, bounded, and made anew when an option, a topic or a
connection is another one.

Source: see `kourou.broker.sending.send`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from kourou.broker.config import BrokerConfig
from kourou.broker.live_config import LiveConfig
from kourou.broker.message_type import NORMAL
from kourou.broker.sending.send_answers import SendAnswers, region_properties
from kourou.broker.statistics.stats import BrokerStats
from kourou.broker.topic_attributes import SERVED_VALUES, has_batch_queues
from kourou.broker.topics import Topics
from kourou.broker.transactions.plain_halves import HalfTarget, half_target
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.clock import Clock
from kourou.errors import InvalidMessageError
from kourou.model.host import Host, pack_address
from kourou.model.msgid import encode_offset_msg_id
from kourou.model.sysflag import (
    COMPRESSED,
    COMPRESSION_MASK,
    MULTI_TAGS,
    TRANSACTION_PREPARED,
)
from kourou.model.topic import TopicConfig, is_retry_topic
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import decode_frame, encode_frame
from kourou.protocol.headers_send import SendMessageResponseHeader
from kourou.protocol.message_layout import TOPIC_SIZE_V1_MAX
from kourou.remoting.connection import Connection
from kourou.store.message_store import Appended

log = logging.getLogger(__name__)

_SYS_FLAGS: Final = COMPRESSED | MULTI_TAGS | COMPRESSION_MASK | TRANSACTION_PREPARED
_DIGITS_MAX: Final = 9
_QUEUE_DIGITS_MAX: Final = 4
_TOPICS_MAX: Final = 32_768
_FLAGS_MAX: Final = 64
_ANSWERS_MAX: Final = 4096
_PLACE_CHARS: Final = 16
_IPV4_BYTES: Final = 4

# Stand in an answer for what differs from send to send; see `Known.answer_parts`.
_MSG_ID: Final = "M" * 32
_OFFSET: Final = 7_171_717_171_717_171
_UNIQUE_ID: Final = "U" * 32
_OPAQUE: Final = 1_717_171_717


class KnownTopic:
    """A topic that plain sends may go to.

    Attributes:
        config: as `Topics` has it; another object, and all of this is void.
        part: topic size and topic, as a record has them.
        queues: by the text of their ids: (id, key in `SealedRun.queues`).
        halves: what half messages have, by the id of the queue that they are for.
    """

    __slots__ = ("config", "halves", "part", "queues")

    def __init__(self, config: TopicConfig) -> None:
        encoded = config.name.encode()
        self.config = config
        self.part = bytes((len(encoded),)) + encoded
        self.queues: dict[str, tuple[int, tuple[bytes, int]]] = {}
        self.halves: dict[int, HalfTarget] = {}

    def add_half(self, queue_id: int) -> HalfTarget:
        """Return what half messages for a queue have."""
        target = self.halves[queue_id] = half_target(self.config, queue_id)
        return target

    def add_queue(self, text: str) -> tuple[int, tuple[bytes, int]] | None:
        """Return the queue with that id; None if there is none, or it is written oddly."""
        config = self.config
        if not is_number(text, _QUEUE_DIGITS_MAX):
            return None
        queue_id = int(text)
        if queue_id >= max(config.read_queue_nums, config.write_queue_nums):
            return None
        queue = self.queues[text] = (queue_id, (self.part[1:], queue_id))
        return queue


AnswerParts = tuple[str, str, str, str, str]
"""An answer without what differs from send to send: its text up to the message ids, from there to
the queue offset, the unique id, the opaque, and the end."""


class KnownPeer(NamedTuple):
    """A producer's connection.

    Attributes:
        born_address, born_port: of the records' born host; `store` the same of the broker as the
            peer knows it.
        place: the broker's part of message ids.
        answers: by queue id; see `Known.answer_parts`.
    """

    born_address: bytes
    born_port: int
    store_address: bytes
    store_port: int
    place: str
    answers: dict[int, AnswerParts]


class SendPath(Protocol):
    """Who takes sends, and what answers and counts them."""

    @property
    def answers(self) -> SendAnswers: ...

    @property
    def stats(self) -> BrokerStats: ...

    @property
    def clock(self) -> Clock: ...


class PlainSends:
    """Plain sends that go through the group commit together: a `Waiting`.

    Those of one read, or of a turn of the loop: of many reads, each of another connection.

    Attributes:
        records: what was stored; `kinds` the message types of those that are not normal.
        shares: see `Waiting`.
        reads: connection, answers for the case that all goes well, bytes of the frames.
    """

    __slots__ = (
        "_is_done",
        "_path",
        "began_ms",
        "deadline_s",
        "end",
        "kinds",
        "puts",
        "reads",
        "records",
        "shares",
        "size",
        "waits_for_sync",
    )

    # Set by `follow`; see `Waiting`.
    end: int
    size: int
    puts: int
    deadline_s: float
    waits_for_sync: bool

    def __init__(self, path: SendPath, began_ms: int) -> None:
        self.began_ms = began_ms
        self.reads: list[tuple[Connection, list[bytes], int]] = []
        self.shares: list[tuple[Connection, int]] = []
        self.records: list[Appended] = []
        self.kinds: dict[int, str] | None = None
        self._path = path
        self._is_done = False

    def follow(self, commit: GroupCommit, end: int, size: int, puts: int) -> None:
        """Go through the group commit from now on: all of them are there.

        Args:
            commit: is to write them.
            end: the log position behind the last record.
            size: bytes of all records, the sum of `shares`.
            puts: how many answers there are.
        """
        self.end = end
        self.size = size
        self.puts = puts
        # Not from when they came: they may have been kept while their peer did not read.
        self.deadline_s = commit.deadline_s()
        self.waits_for_sync = commit.is_sync_mode
        commit.follow(self)

    def note_kind(self, kind: str) -> None:
        """Note that the next of `records` is not a normal message."""
        if self.kinds is None:
            self.kinds = {}
        self.kinds[len(self.records)] = kind

    def stored(self) -> None:
        """Answer all of them, in one write to each connection."""
        self._end(b"".join, self._count)

    def late(self, reason: str) -> None:
        """Answer all of them that the sync did not end in time."""
        self._end(partial(self._late, reason), self._count)

    def answer(self, result: PutResult) -> None:
        """Refuse all of them."""
        self._end(partial(self._refused, result), self._count_failed)

    def _end(self, answers: Callable[[list[bytes]], bytes], count: Callable[[], None]) -> None:
        """Send the answers, and count; of all calls, only the first one does."""
        if self._is_done:
            return
        self._is_done = True
        for connection, replies, request_bytes in self.reads:
            connection.unanswered.remove(request_bytes, len(replies))
            try:
                connection.send_now(answers(replies))
            except Exception:  # one producer's reply must not keep the others from theirs
                log.exception("put.reply_failed")
        try:
            count()
        except Exception:  # nor must a figure
            log.exception("put.count_failed")

    def _late(self, reason: str, replies: list[bytes]) -> bytes:
        late = [self._path.answers.late(decode_frame(frame[4:]), reason) for frame in replies]
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
            stats.on_plain_puts(self.records, took_ms)
            return
        for index, record in enumerate(self.records):
            kind = kinds.get(index, NORMAL)
            stats.on_put(record.topic, record.queue_id, kind, 1, record.size, took_ms)


class Known:
    """What a path knows of options, topics, numbers and peers.

    Attributes:
        config: the options that all of this holds for.
        answers: makes what producers are answered.
        topics: those that plain sends may go to, by name; see `topic`.
        sys_flags: by their texts; see `sys_flag`.
        numbers: texts that are numbers; see `is_known_number`.
        peers: by connection, None of one that is not IPv4; see `meet`.
    """

    def __init__(
        self, config: LiveConfig, topics: Topics, commit: GroupCommit, store_host: Host | None
    ) -> None:
        self._topics = topics
        self._commit = commit
        self._store_host = store_host
        self.peers: dict[Connection, KnownPeer | None] = {}
        self._answers_of: dict[Host, dict[int, AnswerParts]] = {}
        self.forget(config.now)

    def forget(self, config: BrokerConfig) -> None:
        """Begin anew, with other options."""
        self.config = config
        self.answers = SendAnswers(region_properties(config))
        for answers in self._answers_of.values():
            answers.clear()
        self.topics: dict[str, KnownTopic] = {}
        self.sys_flags: dict[str, int] = {}
        self.numbers: set[str] = set()

    def meet(self, connection: Connection) -> KnownPeer | None:
        """Return what records and answers have of a new connection; None if it is not IPv4."""
        born_host = connection.remote_address
        store_host = self._store_host or connection.local_address
        peer: KnownPeer | None = None
        try:
            born, store = pack_address(born_host[0]), pack_address(store_host[0])
        except InvalidMessageError:
            born = store = b""
        if len(born) == len(store) == _IPV4_BYTES:
            place = encode_offset_msg_id(store_host, 0)[:_PLACE_CHARS]
            answers = self._answers_of.setdefault(store_host, {})
            peer = KnownPeer(born, born_host[1], store, store_host[1], place, answers)
        self.peers[connection] = peer
        connection.on_closed.append(self._part)
        return peer

    def _part(self, connection: Connection) -> None:
        self.peers.pop(connection, None)

    def topic(self, name: str) -> KnownTopic | None:
        """Return the topic if plain sends may go to it now."""
        config = self._topics.get(name)
        if (
            config is None
            or not self._topics.is_saved(name)
            or not self._topics.is_open(name)
            or is_retry_topic(name)
            or has_batch_queues(config)
            or any(config.attributes.get(key, one) != one for key, one in SERVED_VALUES.items())
            or (config.order and not self.config.is_writable)
            or config.write_queue_nums < 1
            or len(name.encode()) > TOPIC_SIZE_V1_MAX
        ):
            return None
        if len(self.topics) >= _TOPICS_MAX:  # of those that were deleted nobody told us
            self.topics.clear()
        topic = self.topics[name] = KnownTopic(config)
        return topic

    def sys_flag(self, text: str) -> int | None:
        """Return the flag if it is about compression, several tags, or half messages, alone."""
        if not is_number(text, _DIGITS_MAX) or int(text) & ~_SYS_FLAGS:
            return None
        if int(text) & COMPRESSED and self.config.verify_compressed_bodies:
            return None
        if len(self.sys_flags) < _FLAGS_MAX:
            self.sys_flags[text] = int(text)
        return int(text)

    def is_known_number(self, text: str) -> bool:
        """Tell whether the text is a number, written plainly."""
        if not is_number(text, _DIGITS_MAX):
            return False
        if len(self.numbers) < _FLAGS_MAX:
            self.numbers.add(text)
        return True

    def answer_parts(self, peer: KnownPeer, queue_id: int) -> AnswerParts:
        """Return the parts of the answer to sends to a queue, made by who makes all answers."""
        header = SendMessageResponseHeader(_MSG_ID, queue_id, _OFFSET, _UNIQUE_ID)
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque=_OPAQUE)
        sample = self.answers.stored(
            command, PutStatus.OK, "", header, waits=self._commit.is_sync_mode
        )
        to_ids, _, rest = encode_frame(sample)[8:].decode().partition(_MSG_ID)
        to_offset, _, rest = rest.partition(str(_OFFSET))
        to_unique_id, _, rest = rest.partition(_UNIQUE_ID)
        to_opaque, found, to_end = rest.partition(str(_OPAQUE))
        assert found, "the answer says where the message is, in this order"
        if len(peer.answers) >= _ANSWERS_MAX:
            peer.answers.clear()
        parts = peer.answers[queue_id] = (to_ids, to_offset, to_unique_id, to_opaque, to_end)
        return parts


def is_number(text: str, digits_max: int) -> bool:
    """Tell whether the text is what Java writes of a number that is not negative."""
    return (
        text.isdecimal()
        and text.isascii()
        and len(text) <= digits_max
        and (text[0] != "0" or text == "0")
    )
