"""Tests that a proxy of Kourou and the Java proxy 5.5.0, before one broker, share their groups."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from kourou import MessageExt, PushConsumer
from kourou.testing.process import Serving, run_command
from tests.interop.clients import grpc_member_command
from tests.interop.mqadmin import Mqadmin
from tests.interop.peer import java_proxy
from tests.interop.test_mqadmin_grpc import SIMPLE_MEMBER, TOPIC, running

QUEUES = 4


@dataclass(frozen=True)
class Proxies:
    """Two proxies and the admin tool.

    Attributes:
        grpc: addresses for gRPC clients: of the Java proxy, and of Kourou's.
        remoting: likewise, for remoting clients.
        mqadmin: the tool.
        home: directory for files of clients.
    """

    grpc: tuple[str, str]
    remoting: tuple[str, str]
    mqadmin: Mqadmin
    home: Path

    async def until_listed(self, group: str, expected: set[str]) -> list[str]:
        """Wait until both proxies list the members of a group; return what the tool printed."""
        found: list[str] = []
        async with asyncio.timeout(120):
            while True:
                found = [
                    (
                        await asyncio.to_thread(
                            self.mqadmin.run, "consumerConnection", "-g", group, "-b", address
                        )
                    ).out
                    for address in self.remoting
                ]
                if all(set(re.findall(r"(?m)^(\S+@\S+) ", one)) == expected for one in found):
                    return found
                await asyncio.sleep(0.5)


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxies]:
    home = tmp_path_factory.mktemp("proxies")
    with ExitStack() as running:
        broker = running.enter_context(Serving.start(home / "store", "--no-console"))
        for words in (
            ("topic", "create", TOPIC, "--queues", str(QUEUES)),
            *(("group", "create", group) for group in ("pushers", "simple", "remote")),
        ):
            assert run_command(*words, "--namesrv", broker.namesrv).code == 0
        java = running.enter_context(java_proxy(broker.namesrv, home / "java"))
        kourou = running.enter_context(Serving.start_proxy(broker.namesrv, home / "kourou"))
        mqadmin = running.enter_context(Mqadmin(broker.namesrv, home))
        remoting = str(kourou.ready["remoting"])
        yield Proxies((java[0], kourou.grpc), (java[1], remoting), mqadmin, home)


def test_grpc_consumers_of_each_proxy_are_listed_by_both(proxies: Proxies) -> None:
    async def main() -> None:
        with ExitStack() as members:
            ids = {
                members.enter_context(
                    running(
                        (sys.executable, "-c", SIMPLE_MEMBER, address, "simple", TOPIC),
                        proxies.home,
                    )
                ).client_id
                for address in proxies.grpc
            }
            shown = await proxies.until_listed("simple", ids)
        for one in shown:
            assert len(re.findall(r" 127\.0\.0\.1:\d+ +PYTHON +V5_", one)) == len(ids)
            assert re.search(rf"(?m)^{TOPIC} +\*$", one)
            assert "ConsumeType: CONSUME_ACTIVELY" in one
        await proxies.until_listed("simple", set())

    asyncio.run(main())


@pytest.mark.parametrize("index", [0, 1], ids=["java", "kourou"])
def test_push_consumer_of_one_proxy_is_listed_by_both(index: int, proxies: Proxies) -> None:
    async def main() -> None:
        command = (*grpc_member_command(), proxies.grpc[index], "pushers", TOPIC, "a || b")
        with running(command, proxies.home) as member:
            shown = await proxies.until_listed("pushers", {member.client_id})
        for one in shown:
            assert re.search(r" 127\.0\.0\.1:\d+ +JAVA +V5_", one)
            assert re.search(rf"(?m)^{TOPIC} +a \|\| b$", one)
            assert "ConsumeType: CONSUME_PASSIVELY" in one
        await proxies.until_listed("pushers", set())

    asyncio.run(main())


def test_remoting_consumers_of_both_proxies_share_the_queues(proxies: Proxies) -> None:
    async def take(_: MessageExt) -> None: ...

    async def main() -> None:
        consumers = [PushConsumer("remote", address) for address in proxies.remoting]
        for consumer in consumers:
            consumer.subscribe(TOPIC)
            consumer.listen(take)

        def share(consumer: PushConsumer) -> int:
            return sum(queue.topic == TOPIC for queue in consumer.queues)

        async with consumers[0], asyncio.timeout(90):
            async with consumers[1]:
                while any(share(one) != QUEUES // 2 for one in consumers):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            while share(consumers[0]) != QUEUES:  # noqa: ASYNC110
                await asyncio.sleep(0.2)

    asyncio.run(main())
