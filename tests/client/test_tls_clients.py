"""Producers and consumers over TLS, with a broker and a name server that accept only TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kourou.client.config import ProducerConfig
from kourou.client.consuming.consumer_config import PullConsumerConfig, PushConsumerConfig
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.client.sending.producer import Producer
from kourou.errors import ConnectFailedError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.remoting.tls import TlsClientConfig
from kourou.testing.process import Serving
from tests.cli.test_serve_tls import CONFIG
from tests.remoting.certificates import Authority

BODIES = [b"%d" % number for number in range(20)]
FIRST = ConsumeFromWhere.FIRST_OFFSET


async def assert_all_clients_work(namesrv: str, tls: TlsClientConfig) -> None:
    async with Producer("p", namesrv, config=ProducerConfig(tls=tls)) as producer:
        receipts = [await producer.send(Message("T", body)) for body in BODIES]
        large = await producer.send(Message("T", bytes(3_000_000)))
        assert len({receipt.msg_id for receipt in [*receipts, large]}) == 21

    async with PullConsumer("pull", namesrv, config=PullConsumerConfig(tls=tls)) as pulling:
        queues = await pulling.fetch_subscribe_message_queues("T")
        found = [m.body for queue in queues for m in (await pulling.pull(queue, 0)).messages]
        assert set(BODIES) <= set(found)

    received: list[bytes] = []
    all_received = asyncio.Event()
    pushed = PushConsumer(
        "push", namesrv, config=PushConsumerConfig(tls=tls, consume_from_where=FIRST)
    )
    pushed.subscribe("T")

    @pushed.listen
    async def take(message: MessageExt) -> None:
        received.append(message.body)
        if len(received) == len(BODIES) + 1:
            all_received.set()

    async with pushed, asyncio.timeout(60):
        await all_received.wait()
    assert set(received) == {*BODIES, bytes(3_000_000)}


async def send_one(namesrv: str, config: ProducerConfig) -> None:
    """Send in a single try: the end of a later one by its timeout would hide the refusal."""
    async with Producer("p", namesrv, config=config) as producer:
        await producer.send_oneway(Message("T", b"x"), timeout_ms=60_000)


def test_messages_are_sent_and_consumed_over_tls(tmp_path: Path) -> None:
    files = Authority(tmp_path / "pki").issue("server", "127.0.0.1")
    stranger = Authority(tmp_path / "elsewhere")
    config = tmp_path / "broker.conf"
    config.write_text(CONFIG.format(cert=files.cert, key=files.key, root=files.root))

    with Serving.start(tmp_path / "store", "--config", str(config)) as serving:
        asyncio.run(
            assert_all_clients_work(serving.namesrv, TlsClientConfig(trust_cert_path=files.root))
        )
        for refused in (
            ProducerConfig(),
            ProducerConfig(tls=TlsClientConfig(trust_cert_path=stranger.root)),
        ):
            with pytest.raises(ConnectFailedError):
                asyncio.run(send_one(serving.namesrv, refused))
