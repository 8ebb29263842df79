"""Lazy decoding of properties and hosts is not observable by users of a message."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from kourou.model.message import MessageExt
from kourou.model.properties import encode_properties
from kourou.protocol.record.decode import decode_message, decode_messages
from kourou.protocol.record.encode import RecordDraft, encode_record

PROPERTIES = {"TAGS": "eu", "KEYS": "o-1 o-2", "UNIQ_KEY": "7F00", "region": "north"}


def record(
    born: str = "10.0.0.7",
    stored: str = "10.0.0.1",
    properties: Mapping[str, str] = PROPERTIES,
    topic: str = "T",
) -> bytes:
    draft = RecordDraft(
        topic=topic.encode(),
        queue_id=1,
        flag=2,
        sys_flag=0,
        born_at_ms=4,
        born_host=(born, 5),
        store_host=(stored, 10911),
        reconsume_times=7,
        prepared_transaction_offset=8,
        body=b"hi",
        properties=encode_properties(properties),
    )
    return encode_record(draft, 2, 3, 6)


def read() -> MessageExt:
    (message,) = decode_messages(record())
    return message


MADE = MessageExt(
    topic="T",
    body=b"hi",
    properties=dict(PROPERTIES),
    flag=2,
    queue_id=1,
    queue_offset=2,
    physical_offset=3,
    sys_flag=0,
    born_at_ms=4,
    born_host=("10.0.0.7", 5),
    store_at_ms=6,
    store_host=("10.0.0.1", 10911),
    reconsume_times=7,
    prepared_transaction_offset=8,
    store_size=len(record()),
    body_crc=read().body_crc,
)


def test_decoded_message_equals_one_built_by_hand() -> None:
    assert read() == MADE
    made, late = MADE, read()
    assert made == late
    assert repr(read()) == repr(MADE)
    assert type(read()) is MessageExt
    assert dataclasses.asdict(read()) == dataclasses.asdict(MADE)


def test_messages_with_different_hosts_are_unequal() -> None:
    (other,) = decode_messages(record(born="10.0.0.8"))
    assert other != MADE
    assert other.born_host == ("10.0.0.8", 5)


@pytest.mark.parametrize("is_read", [False, True])
def test_copies_and_pickles_contain_lazy_fields(*, is_read: bool) -> None:
    message = read()
    if is_read:
        assert message.tags == "eu"
    assert copy.copy(message) == MADE
    assert copy.deepcopy(message) == MADE
    assert dataclasses.replace(message, flag=9).properties == PROPERTIES
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(message, protocol))  # noqa: S301 - our own bytes
        assert again == MADE
        assert again.tags == "eu"


def test_changes_of_lazy_fields_persist() -> None:
    message = read()
    message.properties["region"] = "south"
    assert message.properties["region"] == "south"
    message.properties = {"TAGS": "us"}
    assert (message.tags, message.keys) == ("us", [])
    message = read()
    message.properties = {}
    message.born_host = ("1.2.3.4", 5)
    assert (message.properties, message.born_host) == ({}, ("1.2.3.4", 5))
    assert message.store_host == ("10.0.0.1", 10911)


def test_messages_of_one_response_share_no_properties() -> None:
    first, second = decode_messages(record() * 2)
    first.properties["region"] = "south"
    assert second.properties["region"] == "north"


@pytest.mark.parametrize(("born", "stored"), [("::1", "10.0.0.1"), ("10.0.0.7", "2001:db8::1")])
def test_ipv4_and_ipv6_hosts_are_decoded(born: str, stored: str) -> None:
    (message,) = decode_messages(record(born, stored))
    assert message.born_host == (born, 5)
    assert message.store_host == (stored, 10911)
    assert message == decode_message(record(born, stored))


def test_unknown_attribute_raises_an_error() -> None:
    with pytest.raises(AttributeError):
        read().tagz  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError):
        read().extra = 1  # type: ignore[attr-defined]


def test_concurrent_readers_get_the_same_dict() -> None:
    threads, interval_s = 4, sys.getswitchinterval()
    barrier = threading.Barrier(threads, timeout=10)

    def properties(message: MessageExt) -> dict[str, str]:
        barrier.wait()
        return message.properties

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as executor:
            for _ in range(200):
                first, *others = executor.map(properties, [read()] * threads)
                assert all(other is first for other in others)
    finally:
        sys.setswitchinterval(interval_s)


def test_interrupted_read_does_not_affect_other_messages() -> None:
    def interrupt(_: object, event: str, called: object) -> None:
        if event == "c_return" and getattr(called, "__name__", "") == "setdefault":
            sys.setprofile(None)
            raise KeyboardInterrupt

    south = {"region": "south"}
    data = record(properties=south)
    for _ in range(20):  # some of the others reuse the address of the interrupted one
        message = read()
        sys.setprofile(interrupt)
        try:
            assert not message.properties
        except KeyboardInterrupt:
            del message
        finally:
            sys.setprofile(None)
        assert [one.properties for one in decode_messages(data * 3)] == [south] * 3
