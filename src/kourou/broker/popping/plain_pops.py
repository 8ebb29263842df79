"""Plain pops: decoded frames, cached with their verdicts and the texts of their answers."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from kourou.broker.config import BrokerConfig
from kourou.broker.popping.pop_answers import found_fields
from kourou.broker.popping.pop_run import PopQueue
from kourou.broker.popping.pop_verdicts import PermittedPop
from kourou.errors import MalformedHeaderError
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import FLAG_RESPONSE, RemotingCommand
from kourou.protocol.fields import decode_fields
from kourou.protocol.frame import HEADER_AT, encode_frame
from kourou.protocol.popping.headers import PopMessageRequestHeader
from kourou.protocol.popping.topic_names import retry_topic_v1, retry_topic_v2, topic_kind

_POPS_MAX: Final = 4_096
_OPAQUE: Final = 1_444_444_444
_POP_TIME: Final = 11_111_111_111_111_111
_REVIVE_QUEUE: Final = 121_212_121
_REST: Final = 13_131_313_131_313_131

_Int32 = Annotated[int, msgspec.Meta(ge=-0x8000_0000, le=0x7FFF_FFFF)]


class _Fields(msgspec.Struct, rename="camel", gc=False):
    """The fields of `PopMessageRequestHeader`; others are ignored."""

    consumer_group: str
    topic: str
    queue_id: str
    max_msg_nums: str
    invisible_time: str
    poll_time: str
    born_time: str
    init_mode: str
    exp_type: str | None = None
    exp: str | None = None
    order: str | None = None
    attempt_id: str | None = None


class _Header(msgspec.Struct, gc=False):
    """The members of the JSON header that this path reads; see `kourou.protocol.frame`."""

    code: Literal[200050]
    extFields: _Fields  # noqa: N815 - wire name
    flag: Literal[0]
    opaque: _Int32
    version: _Int32 = 0
    remark: str | None = None


decode_pop: Final = msgspec.json.Decoder(_Header).decode

_Key = tuple[str, str, str, str, str, str, str, str | None, str | None, str | None, str | None]
_KEY_FIELDS: Final = (
    "consumerGroup", "topic", "queueId", "maxMsgNums", "invisibleTime", "pollTime", "initMode",
    "expType", "exp", "order", "attemptId",
)  # fmt: skip


class PlainPop:
    """A decoded pop without its born time, its verdict, and texts of its answer.

    Attributes:
        permitted: the verdict with `config`, `topic` and `group`; None while there is none.
        queues: queue id -> what a pop locks.
        template: header of the answer; a format of pop time, revive queue, rest, starts, offsets
            and opaque.
    """

    __slots__ = (
        "config",
        "group",
        "header",
        "kind",
        "permitted",
        "queues",
        "retry_topics",
        "template",
        "topic",
    )

    def __init__(self, header: PopMessageRequestHeader) -> None:
        self.header = header
        self.permitted: PermittedPop | None = None
        self.config: BrokerConfig | None = None
        self.topic: TopicConfig | None = None
        self.group: SubscriptionGroup | None = None
        self.queues: dict[int, PopQueue] = {}
        self.kind = topic_kind(header.topic)
        topic, group = header.topic, header.consumer_group
        self.retry_topics = (retry_topic_v1(group, topic), retry_topic_v2(group, topic))
        self.template = _template(header.invisible_time)


class PlainPops:
    """Cache of decoded pops, by all fields but the born time."""

    def __init__(self) -> None:
        self._pops: dict[_Key, PlainPop] = {}

    def of(self, fields: _Fields) -> PlainPop | None:
        """Return the decoded fields; None if a number is invalid."""
        key = (
            fields.consumer_group, fields.topic, fields.queue_id, fields.max_msg_nums,
            fields.invisible_time, fields.poll_time, fields.init_mode, fields.exp_type, fields.exp,
            fields.order, fields.attempt_id,
        )  # fmt: skip
        return self._pops.get(key) or self._decode(key)

    def _decode(self, key: _Key) -> PlainPop | None:
        """Decode and cache the fields; None if one is invalid."""
        fields = {
            name: text for name, text in zip(_KEY_FIELDS, key, strict=True) if text is not None
        }
        fields["bornTime"] = "0"  # it differs in every pop
        try:
            header = decode_fields(PopMessageRequestHeader, fields)
        except MalformedHeaderError:
            return None
        if len(self._pops) >= _POPS_MAX:
            self._pops.clear()
        cached = self._pops[key] = PlainPop(header)
        return cached


def _template(invisible_ms: int) -> bytes:
    """Return an answer's header as a format; see `PlainPop.template`."""
    starts, offsets = "starts", "offsets"
    fields = found_fields(_POP_TIME, invisible_ms, _REVIVE_QUEUE, _REST, (starts, offsets))
    sample = RemotingCommand(
        ResponseCode.SUCCESS, fields, opaque=_OPAQUE, flag=FLAG_RESPONSE, remark="FOUND"
    )
    template = encode_frame(sample)[HEADER_AT:].replace(b"%", b"%%")
    for value in (_POP_TIME, _REVIVE_QUEUE, _REST, f'"{starts}"', f'"{offsets}"', _OPAQUE):
        before, found, after = template.partition(str(value).encode())
        assert found, "the answer has these values in this order"
        template = before + (b"%d" if isinstance(value, int) else b'"%b"') + after
    return template
