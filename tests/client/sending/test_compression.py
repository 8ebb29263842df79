"""Bodies are compressed and decompressed between Kourou's clients, with each codec."""

from __future__ import annotations

from random import Random

import pytest

from kourou.client.config import ProducerConfig
from kourou.model.message import Message
from kourou.model.msgid import decode_offset_msg_id
from kourou.model.sysflag import COMPRESSED
from kourou.protocol.compression import CompressionType
from kourou.protocol.record.read import read_record
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording

LARGE = b"0123456789" * 1_000
SMALL = b"0123456789"


@pytest.mark.parametrize("kind", CompressionType)
def test_large_body_is_stored_compressed_and_consumed_decompressed(kind: CompressionType) -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            config = ProducerConfig(compress_type=kind)
            async with w.cluster.producer(config=config) as producer:
                await producer.send(Message(TOPIC, LARGE))
                await producer.send(Message(TOPIC, SMALL))
                await producer.send_batch([Message(TOPIC, LARGE), Message(TOPIC, SMALL)])
            async with w.consumer():
                await w.until_received(LARGE, LARGE, SMALL, SMALL)
            by_offset = sorted(w.deliveries, key=lambda one: one.queue_offset)
            assert [one.store_size < len(LARGE) for one in by_offset] == [True, True, False, True]
            assert not any(one.sys_flag & 1 for one in by_offset)

    run_virtual(main())


@pytest.mark.parametrize("kind", CompressionType)
def test_incompressible_body_is_stored_uncompressed(kind: CompressionType) -> None:
    body = Random(1).randbytes(5_000)

    async def main() -> None:
        async with recording() as w, w.consumer():
            config = ProducerConfig(compress_type=kind)
            async with w.cluster.producer(config=config) as producer:
                receipt = await producer.send(Message(TOPIC, body))
            await w.until_received(body)
            _, physical_offset = decode_offset_msg_id(receipt.offset_msg_id)
            record = w.cluster.broker().store.reader.read_record(physical_offset)
            assert record is not None
            assert read_record(record, check_crc=True).sys_flag & COMPRESSED == 0
            assert body in record

    run_virtual(main())
