"""The fast path for plain records agrees with the general path for all bytes."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from kourou.errors import MalformedMessageError
from kourou.model.message import MessageExt
from kourou.protocol.record import decode
from kourou.protocol.record.decode import decode_message, decode_messages
from tests.model.test_lazy_message import record

_RECORD = record()


def _outcome(data: bytes) -> tuple[MessageExt | None, str]:
    try:
        return decode_message(data), ""
    except MalformedMessageError as error:
        return None, str(error)


def _outcomes(data: bytes) -> tuple[list[MessageExt] | None, str]:
    try:
        return decode_messages(data), ""
    except MalformedMessageError as error:
        return None, str(error)


@given(
    at=st.integers(0, len(_RECORD) - 1),
    byte=st.integers(0, 255),
    cut=st.integers(0, 3),
    more=st.binary(max_size=3),
)
@example(at=0, byte=0x80, cut=0, more=b"")  # a negative size
@example(at=84, byte=0xFF, cut=0, more=b"")  # of the body
@example(at=90, byte=0x80, cut=0, more=b"")  # of the topic
@example(at=91, byte=0xFF, cut=0, more=b"")  # a topic that is not UTF-8
@example(at=92, byte=0x80, cut=0, more=b"")  # of the properties
def test_fast_path_and_general_path_agree_on_changed_records(
    at: int, byte: int, cut: int, more: bytes
) -> None:
    data = bytearray(_RECORD)
    data[at] = byte
    data = data[: len(data) - cut] + more
    expected, error = _outcome(bytes(data))
    plain: list[MessageExt] = []
    end = decode.decode_plain(bytes(data), 0, len(data), plain)
    if plain:
        assert (plain[0], end) == (expected, plain[0].store_size)
    else:
        assert end == 0
    messages, reason = _outcomes(bytes(data))
    if expected is None:
        assert (messages, reason) == (None, error)
    else:  # the bytes behind the record may not be a record
        assert messages in ([expected], None)


def test_fast_path_stops_at_the_first_record_that_is_not_plain() -> None:
    size, plain = len(_RECORD), decode_message(_RECORD)
    v6 = record(born="::1")
    data = _RECORD * 3 + v6 + _RECORD
    taken: list[MessageExt] = []
    assert decode.decode_plain(data, size, len(data), taken) == 3 * size
    assert taken == [plain, plain]
    assert decode.decode_plain(data, 3 * size, len(data), taken) == 3 * size
    assert decode_messages(data) == [plain, plain, plain, decode_message(v6), plain]


def test_each_record_has_its_own_topic() -> None:
    topics = ["T", "T", "%RETRY%g", "ä", "T"]
    data = b"".join(record(topic=topic) for topic in topics)
    assert [message.topic for message in decode_messages(data)] == topics
