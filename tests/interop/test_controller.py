"""Two Java brokers in controller mode, with controllers of Kourou and with Java's controller.

All go through the same steps: registration, replication, a killed master, an election by
`mqadmin`, the removal of a replica. The masters change in the same way, and `mqadmin` prints the
same answers.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from random import Random

import pytest

from kourou.client.send_receipt import SendStatus
from kourou.errors import KourouError
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import request
from kourou.protocol.controller.headers import (
    BrokerReplicasInfo,
    ReplicasInfo,
    encode_broker_names,
)
from kourou.protocol.json_records import decode_record
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.testing.process import Serving
from tests.interop.etcd_server import Etcd
from tests.interop.mqadmin import Mqadmin, mask
from tests.interop.peer import (
    JavaServer,
    java_broker,
    java_controller,
    start_java_namesrv,
)
from tests.replica_stores import log_of, pulled, send

COUNT = 50
OK = SendStatus.SEND_OK
PATIENCE_S = 120.0
NAME = "broker-a"
OPTIONS = (
    "enableControllerMode=true\nallAckInSyncStateSet=true\nslaveReadEnable=true\n"
    "controllerHeartBeatTimeoutMills=3000\nsyncBrokerMetadataPeriod=1000\n"
    "checkSyncStateSetPeriod=1000\nhaSendHeartbeatInterval=1000\nhaMaxTimeSlaveNotCatchup=4000\n"
    "registerNameServerPeriod=10000\n"
)


class Controllers:
    """Controllers of one kind: Java's, one of Kourou with a file, or two of Kourou with etcd.

    Attributes:
        addresses: their `controllerAddr`, as brokers need it.
        leading: the address of the leading one.
    """

    def __init__(self, jars: str, home: Path, kind: str, stack: ExitStack) -> None:
        self._kourou: list[Serving] = []
        if kind == "java":
            self.leading = stack.enter_context(java_controller(jars, home))
            self.addresses = self.leading
            return
        options = ("--file", str(home))
        if kind == "etcd":
            etcd = Etcd(home)
            stack.callback(etcd.stop)
            options = ("--etcd", etcd.url)
        for _ in range(2 if kind == "etcd" else 1):
            self._kourou.append(stack.enter_context(Serving.start_controller(*options)))
        self.addresses = ";".join(one.controller for one in self._kourou)
        self.leading = self._kourou[0].controller

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to all controllers of Kourou."""
        for one in self._kourou:
            one.process.send_signal(number)

    async def kill_leading(self) -> None:
        """Kill the leading controller if there is another one, which leads on return."""
        if len(self._kourou) < 2:
            return
        first, second = self._kourou
        first.stop(signal.SIGKILL)
        self.leading = second.controller
        await wait_for(self.leading, in_sync(2))


async def replicas(controller: str) -> ReplicasInfo | None:
    """Return the broker set, as the controller has it."""
    pool = ConnectionPool(Runtime.system(), {}, ConnectionLimits())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(pool.close)
        body = encode_broker_names([NAME])
        command = request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body)
        answer = await pool.request(controller, command, 5)
        if answer.code != ResponseCode.SUCCESS:
            return None
        return decode_record(BrokerReplicasInfo, answer.body).replicas_info_table.get(NAME)


async def wait_for(controller: str, is_reached: Callable[[ReplicasInfo], bool]) -> ReplicasInfo:
    """Return the broker set when the condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await replicas(controller)
            if found is not None and is_reached(found):
                return found
            await asyncio.sleep(0.2)


def in_sync(count: int) -> Callable[[ReplicasInfo], bool]:
    """Return the condition that so many replicas are in sync, with a master."""

    def is_reached(found: ReplicasInfo) -> bool:
        return found.master_broker_id is not None and len(found.in_sync_replicas) == count

    return is_reached


async def send_when_possible(namesrv: str, rng: Random) -> int:
    """Send messages, after retries until the first is accepted; return how many are stored."""
    count = 0
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                count += 1
                if await send(namesrv, rng, 1) == [OK]:
                    break
            except KourouError:
                count -= 1
                await asyncio.sleep(0.2)
    assert await send(namesrv, rng, COUNT) == [OK] * COUNT
    return count + COUNT


async def drive(
    controllers: Controllers, brokers: dict[str, JavaServer], admin: Mqadmin, rng: Random
) -> list[str]:
    """Go through all steps; return what `mqadmin` printed, masked."""
    printed: list[str] = []
    controller = controllers.leading

    def run(*words: str) -> str:
        output = admin.run(*words)
        text = re.sub(r"(start|end)Offset=\d+", r"\1Offset=OFFSET", mask(output))
        text = re.sub(r"(#SyncStateSetEpoch)\t\d+", r"\1\tEPOCH", text)  # a slave may come late
        # Java lists brokers in the order of the hashes of their ports.
        parts = sorted(part.strip("\n") for part in text.split("\n\n"))
        printed.append("\n\n".join((f"$ {words[0]}", *parts)))
        return output.out

    first, second = brokers.values()
    namesrv = first.namesrv_addr
    first.run_broker()
    await wait_for(controller, in_sync(1))
    second.run_broker()
    found = await wait_for(controller, in_sync(2))
    assert (found.master_broker_id, found.master_epoch) == (1, 1)
    assert found.master_address == first.broker_addr
    count = await send_when_possible(namesrv, rng)
    run("getControllerMetaData", "-a", controller)
    run("getSyncStateSet", "-a", controller, "-b", NAME)
    assert await pulled(second.broker_addr) >= count  # Java's slaves copy new topics later

    await controllers.kill_leading()
    controller = controllers.leading
    first.kill()
    found = await wait_for(controller, lambda now: now.master_broker_id == 2)
    assert found.master_epoch is not None
    assert (found.master_epoch, [one.broker_id for one in found.in_sync_replicas]) == (2, [2])
    assert await pulled(second.broker_addr) >= count
    await send_when_possible(namesrv, rng)
    first.run_broker()
    await wait_for(controller, in_sync(2))
    await wait_equal_logs(first, second)

    elect = ("electMaster", "-a", controller, "-c", "DefaultCluster", "-bn", NAME)
    run(*elect, "-b", "2")
    run(*elect, "-b", "1")
    found = await wait_for(controller, in_sync(2))
    assert (found.master_broker_id, found.master_epoch) == (1, 3)
    await send_when_possible(namesrv, rng)
    await wait_equal_logs(first, second)
    run("getBrokerEpoch", "-b", NAME)

    clean = ("cleanBrokerMetadata", "-a", controller, "-c", "DefaultCluster", "-bn", NAME)
    run(*clean, "-b", "2")
    second.stop_broker()
    await wait_for(controller, lambda now: not any(one.alive for one in now.not_in_sync_replicas))
    found = await wait_for(controller, in_sync(1))
    run(*clean, "-b", "2")
    run("getSyncStateSet", "-a", controller, "-b", NAME)
    run(*elect, "-b", "7")
    run("getSyncStateSet", "-a", controller, "-b", "unknown")
    return printed


async def wait_equal_logs(first: JavaServer, second: JavaServer) -> None:
    """Return when both brokers have the same log."""
    async with asyncio.timeout(PATIENCE_S):
        while log_of(first.home / "store") != log_of(second.home / "store"):  # noqa: ASYNC110
            await asyncio.sleep(0.2)


def answers(jars: str, home: Path, kind: str) -> list[str]:
    """Run all steps with a controller of that kind; return what `mqadmin` printed."""
    with ExitStack() as stack:
        controllers = Controllers(jars, home / "controller", kind, stack)
        namesrv = start_java_namesrv(jars, home / "namesrv")
        stack.callback(namesrv.stop)
        options = f"{OPTIONS}controllerAddr={controllers.addresses}\n"
        brokers = {
            name: java_broker(jars, home / name, namesrv.namesrv_addr, options=options)
            for name in ("first", "second")
        }
        for broker in brokers.values():
            stack.callback(broker.stop)
        admin = stack.enter_context(Mqadmin(namesrv.namesrv_addr, home))
        return asyncio.run(drive(controllers, brokers, admin, Random(7)))


@pytest.fixture(scope="module")
def of_java(jars: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the answers with Java's controller."""
    return answers(jars, tmp_path_factory.mktemp("java"), "java")


@pytest.mark.parametrize("kind", ["file", "etcd"])
def test_java_brokers_fail_over_under_the_controller_of_kourou(
    jars: str, tmp_path: Path, of_java: list[str], kind: str
) -> None:
    of_kourou = answers(jars, tmp_path, kind)

    elected = [number for number, text in enumerate(of_java) if "unquoted name" in text]
    assert len(elected) == 1, "mqadmin cannot read a success of Java's own controller"
    assert "#BrokerMasterAddr\tADDRESS\n#MasterEpoch\t3\n" in of_kourou[elected[0]]
    for number, (ours, theirs) in enumerate(zip(of_kourou, of_java, strict=True)):
        if number in elected or (number == 0 and kind == "etcd"):  # the names of the controllers
            continue
        assert ours == theirs
