"""Offsets by queue and a broker's offset tables are encoded and decoded as in Java."""

from __future__ import annotations

from pathlib import Path

import pytest

from kourou.errors import MalformedBodyError
from kourou.model.queue import MessageQueue
from kourou.protocol.data_version import DataVersion
from kourou.protocol.offset_table import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    decode_consumer_offset_table,
    decode_delay_offset_table,
    encode_consumer_offset_table,
    encode_delay_offset_table,
)
from kourou.protocol.offsets import (
    ConsumerStatus,
    decode_consumer_status,
    decode_correction_offsets,
    decode_reset_offsets,
    encode_consumer_status,
    encode_correction_offsets,
    encode_reset_offsets,
    encode_reset_offsets_for_c,
)

CONFIG = Path(__file__).parent.parent / "golden" / "config"
QUEUE, OTHER = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def test_reset_is_a_map_keyed_by_queue() -> None:
    body = encode_reset_offsets({OTHER: 6, QUEUE: 5})

    assert body == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5,'
        b'{"brokerName":"b","queueId":1,"topic":"T"}:6}}'
    )
    assert decode_reset_offsets(body) == {QUEUE: 5, OTHER: 6}


def test_reset_for_cpp_clients_is_a_list() -> None:
    body = encode_reset_offsets_for_c({QUEUE: 5})

    assert body == b'{"offsetTable":[{"brokerName":"b","offset":5,"queueId":0,"topic":"T"}]}'
    assert decode_reset_offsets(body) == {QUEUE: 5}


def test_reset_of_old_versions_with_quoted_queues_is_decoded() -> None:
    body = rb'{"offsetTable":{"{\"brokerName\":\"b\",\"queueId\":0,\"topic\":\"T\"}":5}}'

    assert decode_reset_offsets(body) == {QUEUE: 5}


def test_consumer_status_has_offsets_of_one_or_several_clients() -> None:
    status = ConsumerStatus({QUEUE: 1}, {"c@1": {OTHER: 2}})

    assert decode_consumer_status(encode_consumer_status(status)) == status
    assert decode_consumer_status(b"{}") == ConsumerStatus()


def test_correction_offsets_have_bare_keys() -> None:
    body = encode_correction_offsets({1: 0, 0: 7})

    assert body == b'{"correctionOffsets":{0:7,1:0}}'
    assert decode_correction_offsets(body) == {0: 7, 1: 0}


def test_offset_files_of_java_are_decoded() -> None:
    offsets = decode_consumer_offset_table((CONFIG / "consumerOffset.json").read_bytes())
    delays = decode_delay_offset_table((CONFIG / "delayOffset.json").read_bytes())

    assert offsets.offsets
    assert all("@" in key for key in offsets.offsets)
    assert all(1 <= level <= 18 for level in delays.offsets)
    again = decode_consumer_offset_table(encode_consumer_offset_table(offsets, pretty=True))
    assert again == offsets
    assert decode_delay_offset_table(encode_delay_offset_table(delays, pretty=True)) == delays


def test_absent_tables_are_omitted() -> None:
    table = ConsumerOffsetTable({"T@g": {0: 1}})

    body = encode_consumer_offset_table(table)

    assert body == b'{"offsetTable":{"T@g":{0:1}}}'
    assert decode_consumer_offset_table(body) == table
    assert encode_delay_offset_table(DelayOffsetTable({1: 0})) == b'{"offsetTable":{1:0}}'


def test_encoded_offset_table_decodes_to_the_same() -> None:
    table = ConsumerOffsetTable(
        {"T@g": {0: 1, 2: 3}},
        DataVersion(1, 2, 3),
        {"g": ["T"]},
        {"T@g": {0: 4}},
        {"%LMQ%q@g": 5},
    )

    assert decode_consumer_offset_table(encode_consumer_offset_table(table)) == table


@pytest.mark.parametrize(
    "body",
    [
        b'{"offsetTable":{"T":5}}',
        b'{"offsetTable":{{"topic":"T"}:"x"}}',
        b'{"offsetTable":[7]}',
        b'{"offsetTable":7}',
    ],
)
def test_malformed_reset_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        decode_reset_offsets(body)
