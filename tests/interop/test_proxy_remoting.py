"""Tests of the Java client 5.5.0 with the remoting port of `kourou serve proxy`.

The proxy is before Kourou's and before Java's broker; the client uses it as its name server.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kourou import Message
from kourou.blocking import AdminClient, Producer
from kourou.testing.process import Serving
from tests.interop.clients import Client
from tests.interop.peer import JavaServer

COUNT = 24


class Proxied:
    """A proxy and its cluster.

    Attributes:
        name: of the broker's implementation.
        namesrv: the name server of the cluster.
        remoting: the proxy's port, which clients use as their name server.
    """

    def __init__(self, name: str, namesrv: str, proxy: Serving) -> None:
        self.name = name
        self.namesrv = namesrv
        self.remoting = proxy.remoting

    def create(self, purpose: str) -> str:
        """Create a topic, and return its name."""
        topic = f"{purpose}-{self.name}"
        with AdminClient(self.namesrv) as admin:
            admin.create_topic(topic, queues=4)
        return topic

    def send(self, topic: str, count: int) -> None:
        """Send messages, not by the proxy."""
        with Producer("interop-python-producer", self.namesrv) as producer:
            for number in range(count):
                tags = "even" if number % 2 == 0 else "odd"
                properties = {"number": str(number)}
                message = Message(
                    topic, b"%d" % number, tags=tags, keys=[f"key-{number}"], properties=properties
                )
                producer.send(message)


@pytest.fixture(scope="module", params=["kourou", "java"])
def proxied(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxied]:
    server: Serving | JavaServer = request.getfixturevalue(f"{request.param}_server")
    namesrv = server.namesrv if isinstance(server, Serving) else server.namesrv_addr
    with Serving.start_proxy(namesrv, tmp_path_factory.mktemp("home")) as proxy:
        yield Proxied(request.param, namesrv, proxy)


def numbers(lines: list[list[str]]) -> list[int]:
    return sorted(int(line[7]) for line in lines if line[0] == "got")


def test_messages_are_sent_through_the_proxy(java_client: Client, proxied: Proxied) -> None:
    topic = proxied.create("ProxySent")

    lines = java_client.run("produce", proxied.remoting, topic, COUNT)

    assert not [line for line in lines if line[0] == "failed"]
    assert {line[1] for line in lines if line[0] == "sent"} == {"SEND_OK"}
    with AdminClient(proxied.namesrv) as admin:
        offsets = admin.topic_stats(topic).offsets.values()
    assert sum(queue.max_offset - queue.min_offset for queue in offsets) == COUNT


def test_push_consumer_receives_by_tag(java_client: Client, proxied: Proxied) -> None:
    topic = proxied.create("ProxyPushed")
    proxied.send(topic, COUNT)

    lines = java_client.run(
        "consume", proxied.remoting, f"g-{topic}", topic, "even", COUNT // 2, 0, 90
    )

    assert ["done", "true"] in lines
    assert numbers(lines) == list(range(0, COUNT, 2))


def test_failed_messages_are_delivered_again(java_client: Client, proxied: Proxied) -> None:
    topic = proxied.create("ProxyRetried")
    proxied.send(topic, 5)

    lines = java_client.run("consume", proxied.remoting, f"g-{topic}", topic, "*", 5, 3, 150)

    assert ["done", "true"] in lines
    for number in range(5):
        deliveries = [line for line in lines if line[0] == "got" and line[1] == f"key-{number}"]
        assert [int(line[2]) for line in deliveries] == [1, 2, 3, 4]


@pytest.mark.parametrize("way", ["pull", "assign"])
def test_pull_consumer_reads_a_whole_topic(java_client: Client, proxied: Proxied, way: str) -> None:
    topic = proxied.create(f"ProxyPulled-{way}")
    proxied.send(topic, COUNT)

    lines = java_client.run(way, proxied.remoting, f"g-{topic}", topic, COUNT, 90)

    assert ["done", "true"] in lines
    assert numbers(lines) == list(range(COUNT))
