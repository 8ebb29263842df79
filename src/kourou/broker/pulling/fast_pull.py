"""Fast path of pulls: PULL_MESSAGE (11) without command, header or answer objects.

Consumers that catch up send nothing else, so these frames are decoded, answered and encoded by
hand: a pull of 32 messages of 1 KB costs the broker about half of its cost in `pull.py`. Pulls of
consumers that have caught up are held and answered here as well: on the general path they took more
than half of the latency of a message for which a pull is held. A frame is accepted only if it has
all of these properties:

    header      JSON, the fields that clients write, numbers in canonical form; not one-way
    verdict     it is permitted and takes all messages (`verdicts.py`); no offset reset is pending
    messages    at least one; all were written by this process and are in memory. Or the
                pull's offset is the end of the queue, and the pull asks to be held

All other frames are left to the general path (`pull.py`), which serves every request; nothing has
changed by then. A held pull that has become unusual by the time it is woken is passed on too. Both
paths produce the same bytes, offsets and statistics; `tests/broker/pulling/test_fast_pull.py`
compares them.

Source: see `kourou.broker.pulling.pull`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated, Final, Literal

import msgspec

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.fast_requests import FastRequests
from kourou.broker.pulling.held_pulls import HeldPulls, SharedReads
from kourou.broker.pulling.pull import answer_fields
from kourou.broker.pulling.pull_checks import PullChecks
from kourou.broker.pulling.suggested_broker import SuggestedBroker
from kourou.broker.pulling.verdicts import (
    PermittedPull,
    PullFacts,
    PullSpec,
    Refusal,
    judge_pull,
    message_limit,
    pull_spec,
)
from kourou.decimals import decimal_or
from kourou.errors import MalformedHeaderError, ProtocolError
from kourou.model.subscription import SubscriptionData
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import FLAG_RESPONSE, RemotingCommand
from kourou.protocol.fields import decode_fields
from kourou.protocol.frame import (
    FRAME_SIZE_MAX,
    HEADER_AT,
    decode_frame,
    encode_frame,
    frame_of,
)
from kourou.protocol.pulling import PullMessageRequestHeader
from kourou.remoting.connection import Connection, Request
from kourou.store.message_store import FastGetResult, GetPlan, GetStatus

log = logging.getLogger(__name__)

_FRAME_BYTES_MAX: Final = 4096
"""A typical frame has about 400 bytes."""
_HEADER_BYTES_MAX: Final = 4096
_ALL_MESSAGES: Final = SubscriptionData("")
_PULLS_MAX: Final = 16_384
_EXPRESSION_LENGTH_MAX: Final = 256
"""Verdicts with longer expressions are not cached: the cache could take too much memory."""
_TEMPLATES_MAX: Final = 4096
_UNKNOWN_BEGIN: Final = 1 << 63
"""Stands for the missing `TOPIC_BEGIN_FIELD` of other clients: their offset is taken as valid."""

_NEXT: Final = 1_111_111_111_111_111_111
_LOW: Final = 1_222_222_222_222_222_222
_HIGH: Final = 1_333_333_333_333_333_333
_OPAQUE: Final = 1_444_444_444

_Int32 = Annotated[int, msgspec.Meta(ge=-0x8000_0000, le=0x7FFF_FFFF)]


class _Fields(msgspec.Struct, rename="camel", gc=False):
    """The fields of `PullMessageRequestHeader` that this path reads; others are ignored."""

    consumer_group: str
    topic: str
    queue_id: str
    queue_offset: str
    max_msg_nums: str
    sys_flag: str
    commit_offset: str
    suspend_timeout_millis: str
    sub_version: str
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: str | None = None
    request_source: str | None = None
    kourou_topic_begin: str | None = None


class _Header(msgspec.Struct, gc=False):
    """The members of the JSON header that this path reads; see `kourou.protocol.frame`."""

    code: Literal[11]
    extFields: _Fields  # noqa: N815 - wire name
    flag: Literal[0]
    opaque: _Int32
    version: _Int32 = 0
    remark: str | None = None


_decode: Final = msgspec.json.Decoder(_Header).decode

_Key = tuple[str, str, str, str, str, str, str, str | None, str | None, str | None, str | None]
_KEY_FIELDS: Final = (
    "consumerGroup", "topic", "queueId", "maxMsgNums", "sysFlag", "suspendTimeoutMillis",
    "subVersion", "subscription", "expressionType", "maxMsgBytes", "requestSource",
)  # fmt: skip


class _CachedPull:
    """A decoded pull without its offsets, and its verdict.

    Attributes:
        permitted: the verdict with these `facts`; None while there is none.
    """

    __slots__ = ("facts", "permitted", "spec")

    def __init__(self, spec: PullSpec) -> None:
        self.spec = spec
        self.facts: PullFacts | None = None
        self.permitted: PermittedPull | None = None


class _Held:
    """A pull held by the fast path; see `HeldPull`.

    Attributes:
        frame: the whole frame.
        topic_begin: of the topic that its offset belongs to.
        size: its size as counted among the unanswered requests, in bytes.
    """

    __slots__ = (
        "_path", "connection", "frame", "offset", "opaque", "pull", "size", "topic_begin",
    )  # fmt: skip

    def __init__(
        self,
        path: FastPull,
        connection: Connection,
        pull: _CachedPull,
        offset: int,
        opaque: int,
        frame: bytes,
        topic_begin: int,
    ) -> None:
        self._path = path
        self.connection = connection
        self.pull = pull
        self.offset = offset
        self.opaque = opaque
        self.frame = frame
        self.topic_begin = topic_begin
        self.size = len(frame) - 4

    @property
    def group(self) -> str:
        return self.pull.spec.group

    def serve_again(self, reads: SharedReads) -> bytes | None:
        return self._path.serve_again(self, reads)


class FastPull(FastRequests):
    """Serves pulls on the fast path; see `FastRequests`."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        checks: PullChecks,
        offsets: ConsumerOffsets,
        held: HeldPulls,
        general_path: Callable[[Request], None],
    ) -> None:
        """Serve pulls; `general_path` serves a held pull that the fast path cannot answer."""
        super().__init__((RequestCode.PULL_MESSAGE,), _FRAME_BYTES_MAX)
        self._config = context.live_config
        self._checks = checks
        self._offsets = offsets
        self._reader = context.store.reader
        self._held = held
        self._stats = context.stats
        self._general_path = general_path
        self._pulls: dict[_Key, _CachedPull] = {}
        self._templates: dict[tuple[int, int, int], bytes] = {}
        self._suggested = SuggestedBroker(context)

    def _serve(
        self, connection: Connection, buffer: bytearray, start: int, header_end: int, end: int
    ) -> str | None:
        """Answer or hold the pull of a frame, as `_serve_pull` does."""
        try:
            header = _decode(buffer[start + HEADER_AT : header_end])
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return "header"
        if not connection.unanswered.has_room(end - start - 4, 1):
            return "connection"
        return self._serve_pull(connection, header, buffer[start:end])

    def _serve_pull(self, connection: Connection, header: _Header, frame: bytearray) -> str | None:
        """Answer or hold the pull.

        Returns:
            None if it is done; the reason, with no effect, if the general path must serve the pull.
        """
        fields, opaque = header.extFields, header.opaque
        offset = decimal_or(fields.queue_offset, -1)
        commit_offset = decimal_or(fields.commit_offset, -1)
        cached = self._cached_pull(fields)
        if cached is None:
            return "number"
        if not 0 <= commit_offset <= offset:
            return "offset"  # the answer ends at `offset` or later, which bounds the commit offset
        begin = fields.kourou_topic_begin
        topic_begin = _UNKNOWN_BEGIN if begin is None else decimal_or(begin, -1)
        if topic_begin < self._reader.topic_begin(fields.topic):
            return "topic begin"  # it is refused
        pull, host = cached.spec, connection.remote_address[0]
        if pull.is_committing and not self._offsets.has_room(pull.group, pull.topic, host):
            return "offset"
        permitted = self._permit(cached)
        if isinstance(permitted, str):
            return permitted
        if pull.suspend_ms and self._reader.max_offset(pull.topic, pull.queue_id) == offset:
            # The most frequent pull of consumers that have caught up: there is nothing to read.
            held = _Held(self, connection, cached, offset, opaque, bytes(frame), topic_begin)
            if not self._hold(held):
                return "hold"
        else:
            answer = self._answer(pull, permitted, offset, opaque, None)
            if answer is None:
                return "messages not found"
            connection.send_frames(answer)
        if pull.is_committing:
            self._offsets.commit_pulled(pull.group, pull.topic, pull.queue_id, commit_offset, host)
        return None

    def _cached_pull(self, fields: _Fields) -> _CachedPull | None:
        """Return the decoded fields; None if a number is invalid."""
        key = (
            fields.consumer_group, fields.topic, fields.queue_id, fields.max_msg_nums,
            fields.sys_flag, fields.suspend_timeout_millis, fields.sub_version,
            fields.subscription, fields.expression_type, fields.max_msg_bytes,
            fields.request_source,
        )  # fmt: skip
        return self._pulls.get(key) or self._decode_pull(key)

    def _permit(self, cached: _CachedPull) -> PermittedPull | str:
        """Return the verdict on a pull that takes all messages; otherwise the reason to decline."""
        pull = cached.spec
        if self._offsets.is_reset(pull.group, pull.topic, pull.queue_id):
            return "offset reset"
        facts = self._checks.facts(pull)
        if cached.permitted is not None and facts == cached.facts:
            return cached.permitted
        verdict = judge_pull(pull, facts)
        if isinstance(verdict, Refusal):
            return verdict.reason
        if not verdict.takes_all:
            return "selection"
        if len(verdict.subscription.sub_string) <= _EXPRESSION_LENGTH_MAX:
            cached.facts, cached.permitted = facts, verdict
        return verdict

    def _answer(
        self,
        pull: PullSpec,
        permitted: PermittedPull,
        offset: int,
        opaque: int,
        reads: SharedReads | None,
    ) -> bytes | None:
        """Return the answer's frame; None if nothing is found, or the general path must serve it.

        This takes about 20 us for 32 messages, 15 of them to find and copy the messages; a third of
        that if `reads` has them already.
        """
        found = self._find(pull, offset, reads)
        if found is None:
            return None
        next_offset, low, high, records, size, log_end = found
        suggested = self._suggested.id_for(permitted.group, log_end)
        header = self._template(permitted, suggested) % (next_offset, low, high, opaque)
        if len(header) + size > FRAME_SIZE_MAX - _HEADER_BYTES_MAX:
            return None
        where = (pull.group, pull.topic, pull.queue_id)
        self._offsets.note_pulled(*where, next_offset)
        self._stats.on_get(*where, next_offset - offset, size, 0)
        return frame_of(header, *records)

    def _find(self, pull: PullSpec, offset: int, reads: SharedReads | None) -> FastGetResult | None:
        """Read the messages, once for all pulls that share `reads`."""
        now = self._config.current
        where = (pull.topic, pull.queue_id, offset, message_limit(pull, now))
        if reads is None:
            return self._reader.get_fast(*where, now.pull_bytes_max)
        found = reads.get(where)
        if found is None:
            found = self._reader.get_fast(*where, now.pull_bytes_max)
            if found is not None:
                # Views of the log are valid only at once: sending an answer may run other code.
                found = reads[where] = found._replace(records=[memoryview(b"".join(found.records))])
        return found

    def _hold(self, held: _Held) -> bool:
        """Hold a pull that waits for the next message of its queue; return whether it is held."""
        pull, offset = held.pull.spec, held.offset
        where = (pull.topic, pull.queue_id, offset)
        if not self._held.hold(held, where, _ALL_MESSAGES, pull.suspend_ms, len(held.frame)):
            return False
        held.connection.unanswered.add_all(held.size, 1)
        self._offsets.note_pulled(pull.group, pull.topic, pull.queue_id, offset)
        self._stats.on_miss()
        return True

    def serve_again(self, held: _Held, reads: SharedReads) -> bytes | None:
        """Return the answer to a held pull; None if the general path answers it."""
        try:
            answer, permitted = None, self._permit(held.pull)
            if held.topic_begin < self._reader.topic_begin(held.pull.spec.topic):
                permitted = "topic begin"
            if isinstance(permitted, str):
                self.declined[permitted] += 1
            else:
                answer = self._answer(held.pull.spec, permitted, held.offset, held.opaque, reads)
        except Exception:  # a failure of one pull must not affect those woken with it
            log.exception("held_pull.failed")
            answer = None
        if answer:
            held.connection.unanswered.remove(held.size)
            return answer
        try:
            command = decode_frame(memoryview(held.frame)[4:])
        except ProtocolError as error:  # in a part that this path does not read
            held.connection.close(str(error))
        else:
            self._general_path(Request(command, held.connection, held.size))
        return None

    def _decode_pull(self, key: _Key) -> _CachedPull | None:
        """Decode and cache the fields; None if a number is invalid."""
        fields = {
            name: text for name, text in zip(_KEY_FIELDS, key, strict=True) if text is not None
        }
        fields |= {"queueOffset": "0", "commitOffset": "0"}  # these differ in every pull
        try:
            header = decode_fields(PullMessageRequestHeader, fields)
        except MalformedHeaderError:
            return None
        if len(self._pulls) >= _PULLS_MAX:
            self._pulls.clear()
        cached = self._pulls[key] = _CachedPull(pull_spec(header))
        return cached

    def _template(self, permitted: PermittedPull, suggested: int) -> bytes:
        """Return an answer's header as a format for `bytes %`, cut from a sample and cached."""
        flags = (permitted.topic.topic_sys_flag, permitted.group.group_sys_flag, suggested)
        template = self._templates.get(flags)
        if template is not None:
            return template
        plan = GetPlan(GetStatus.FOUND, _NEXT, _LOW, _HIGH, [], 0)
        sample = RemotingCommand(
            ResponseCode.SUCCESS,
            answer_fields(plan, *flags),
            opaque=_OPAQUE,
            flag=FLAG_RESPONSE,
            remark=plan.status.name,
        )
        template = encode_frame(sample)[HEADER_AT:].replace(b"%", b"%%")
        for value in (_NEXT, _LOW, _HIGH, _OPAQUE):
            before, found, after = template.partition(b"%d" % value)
            assert found, "the answer has these numbers in this order"
            template = before + b"%d" + after
        if len(self._templates) >= _TEMPLATES_MAX:
            self._templates.clear()
        self._templates[flags] = template
        return template
