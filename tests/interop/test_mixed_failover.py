"""A Java broker and one of Kourou in one set: each replaces the other, under either controller."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest

from kourou.errors import KourouError
from kourou.testing.process import Serving, run_command
from tests.held_ports import held_ports
from tests.interop.peer import JavaServer, java_broker
from tests.interop.test_controller import (
    OPTIONS,
    Controllers,
    in_sync,
    send_when_possible,
    wait_for,
)
from tests.replica_stores import pulled, send, wait_equal

LEASE_S = 2.2
"""Longer than the lease of a master."""
SEGMENT_BYTES = 67_108_864
"""As of the Java broker."""


class Mixed:
    """Both brokers; the Java one registers first, and is the first master."""

    def __init__(self, java: JavaServer, home: Path, controllers: Controllers, port: int) -> None:
        self.java = java
        self.store = home / "kourou"
        self.controllers = controllers
        self._port = port
        self.kourou: Serving | None = None

    def start_kourou(self) -> None:
        environ = {
            "KOUROU_BROKER_BROKER_NAME": "broker-a",
            "KOUROU_BROKER_ENABLE_CONTROLLER_MODE": "true",
            "KOUROU_BROKER_CONTROLLER_ADDR": self.controllers.addresses,
            "KOUROU_BROKER_CONTROLLER_FAILSAFE": "true",
            "KOUROU_BROKER_SLAVE_READ_ENABLE": "true",
            "KOUROU_BROKER_COMMITLOG_SEGMENT_BYTES": str(SEGMENT_BYTES),
        }
        self.kourou = Serving.start(
            self.store, "--namesrv", self.java.namesrv_addr, port=self._port, environ=environ
        )

    def stop_kourou(self) -> int:
        return 0 if self.kourou is None else self.kourou.stop().code

    @property
    def java_store(self) -> Path:
        return self.java.home / "store"

    async def lose_controller(self, namesrv: str, rng: Random) -> None:
        """Stop the controller of a master with failsafe, whose slave is Java's, for a while."""
        controller = self.controllers.leading
        await asyncio.to_thread(self.start_kourou)
        await wait_for(controller, in_sync(1))
        self.java.run_broker()
        found = await wait_for(controller, in_sync(2))
        assert found.master_broker_id == 1
        await send_when_possible(namesrv, rng)
        self.controllers.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(LEASE_S)
            for _ in range(5):
                with pytest.raises(KourouError):
                    await send(namesrv, rng, 1)
                await asyncio.sleep(0.5)
        finally:
            self.controllers.send_signal(signal.SIGCONT)
        await send_when_possible(namesrv, rng)

    async def drive(self, namesrv: str, rng: Random) -> None:
        """Kill each master in turn, and let it return."""
        controller = self.controllers.leading
        self.java.run_broker()
        await wait_for(controller, in_sync(1))
        await asyncio.to_thread(self.start_kourou)
        assert self.kourou is not None
        found = await wait_for(controller, in_sync(2))
        assert found.master_broker_id == 1
        count = await send_when_possible(namesrv, rng)
        await wait_equal(self.java_store, self.store)

        self.java.kill()
        await wait_for(controller, lambda now: now.master_broker_id == 2)
        count += await send_when_possible(namesrv, rng)
        assert await pulled(self.kourou.broker) >= count
        self.java.run_broker()
        await wait_for(controller, in_sync(2))
        count += await send_when_possible(namesrv, rng)
        await wait_equal(self.java_store, self.store)

        self.kourou.stop(signal.SIGKILL)
        await wait_for(controller, lambda now: now.master_broker_id == 1)
        count += await send_when_possible(namesrv, rng)
        await asyncio.to_thread(self.start_kourou)
        await wait_for(controller, in_sync(2))
        count += await send_when_possible(namesrv, rng)
        await wait_equal(self.java_store, self.store)
        assert await pulled(self.java.broker_addr) >= count


@contextmanager
def mixed_set(jars: str, home: Path, kind: str) -> Iterator[tuple[Mixed, str]]:
    """Return both brokers, which are not started yet, and the address of their name server."""
    with ExitStack() as stack:
        [port, _] = stack.enter_context(held_ports(2))
        controllers = Controllers(jars, home / "controller", kind, stack)
        namesrv = stack.enter_context(Serving.start_namesrv(home / "namesrv")).namesrv
        options = f"{OPTIONS}controllerAddr={controllers.addresses}\n"
        java = java_broker(jars, home / "java", namesrv, options=options)
        stack.callback(java.stop)
        mixed = Mixed(java, home, controllers, port)
        stack.callback(mixed.stop_kourou)
        yield mixed, namesrv


@pytest.mark.parametrize("kind", ["file", "java"])
def test_java_and_kourou_replace_each_other(jars: str, tmp_path: Path, kind: str) -> None:
    with mixed_set(jars, tmp_path, kind) as (mixed, namesrv):
        asyncio.run(mixed.drive(namesrv, Random(7)))
        assert mixed.stop_kourou() == 0
    assert run_command("store", "check", str(mixed.store)).code == 0


def test_java_slave_confirms_no_master_without_controllers(jars: str, tmp_path: Path) -> None:
    with mixed_set(jars, tmp_path, "file") as (mixed, namesrv):
        asyncio.run(mixed.lose_controller(namesrv, Random(7)))
        assert mixed.stop_kourou() == 0
