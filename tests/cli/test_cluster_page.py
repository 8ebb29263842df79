"""The commands of docs/cluster.md, run in the order of the page."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kourou.client.config import ProducerConfig
from kourou.client.send_receipt import SendStatus
from kourou.client.sending.producer import Producer
from kourou.disk import OsDisk
from kourou.model.message import Message
from kourou.proxy.pb import v2
from kourou.remoting.network import TcpNetwork, parse_address
from kourou.store.config import StoreConfig
from kourou.store.message_store import MessageStore
from kourou.testing.process import Outcome, run_command, start_command
from tests.local_clusters import PATIENCE_S, LocalCluster, wait_until
from tests.proxy.grpc_client import GrpcClient
from tests.replica_stores import log_of
from tests.store.rig import draft

pytestmark = pytest.mark.slow
PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text(encoding="utf-8")
START = "cluster --brokers 2 --replicas 2 --proxies 1 --dir ./cluster"


def commands_of(section: str) -> list[str]:
    """Return the commands of the section with this heading."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?<!`)```\n(\$.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines), lines
    return [line.removeprefix("$ ") for line in lines]


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str, Mapping[str, str]], str]:
    """Return a function that runs a shell command, with `kourou`, in a directory of its own."""
    program = tmp_path / "bin" / "kourou"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kourou.cli.main "$@"\n')
    program.chmod(0o755)

    def run(command: str, environ: Mapping[str, str]) -> str:
        path = f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, **environ},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    return run


def bodies(received: str) -> set[int]:
    """Return the ids in the bodies of received messages."""
    return {json.loads(json.loads(line)["body"])["id"] for line in received.splitlines()}


async def send_by_grpc(address: str) -> None:
    """Send a message by gRPC."""
    client = await GrpcClient.connect(TcpNetwork(), parse_address(address), {"x-mq-client-id": "p"})
    properties = v2.SystemProperties(message_id=f"{1:034d}", born_host="test")
    message = v2.Message(
        topic=v2.Resource(name="orders"), system_properties=properties, body=b'{"id": 19}'
    )
    answer = await client.call("SendMessage", v2.SendMessageRequest(messages=[message]))
    assert answer.status.code == v2.Code.OK, answer
    client.close()


def start(directory: Path, words: list[str]) -> subprocess.Popen[str]:
    """Start the cluster on free ports; return when it has shown its screen."""
    process = start_command(*words, "--namesrv-port", "0", cwd=directory)
    assert process.stdout is not None
    while "cluster status" not in (line := process.stdout.readline()):
        assert line, "it ended before it had started"
    return process


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")


def test_commands_of_the_page_work_in_their_order(
    tmp_path: Path, shell: Callable[[str, Mapping[str, str]], str]
) -> None:
    assert commands_of("Start") == [f"kourou {START}"]
    process = start(tmp_path, START.split())
    try:
        members = json.loads((tmp_path / "cluster" / "cluster.json").read_text())["members"]
        environ = {"KOUROU_NAMESRV": f"127.0.0.1:{members[0]['port']}"}
        shown = [shell(line, environ) for line in commands_of("Topics, sends, consumers")]
        assert bodies(shown[2]) == {17}
        assert {"broker-a", "broker-b"} <= set(shown[3].split())
        asyncio.run(send_by_grpc(f"127.0.0.1:{members[-1]['port']}"))

        state, _ = (shell(line, environ) for line in commands_of("State"))
        assert state.count("  ok\n") == 8

        kill, *others = commands_of("Kill a process")
        shell(kill, environ)
        _, received = (shell(line, environ) for line in others)
        assert len(bodies(received) & {17, 18, 19}) == 2
    finally:
        stop(process)


def test_master_is_restored_from_its_slave_by_the_commands_of_the_page(
    tmp_path: Path, shell: Callable[[str, Mapping[str, str]], str]
) -> None:
    with LocalCluster(tmp_path / "cluster", "--brokers", "1", "--replicas", "2") as cluster:
        environ = {"KOUROU_NAMESRV": cluster.ready()["namesrv"]}
        shell("kourou send orders '{\"id\": 17}'", environ)
        cluster.process.kill()
    for line in commands_of("Restore a master from its slave"):
        shell(line, {})
    with LocalCluster(tmp_path / "cluster") as cluster:
        cluster.ready()
        shell("kourou topic create orders", environ)  # the slave copies topics each 10 s only
        received = shell("kourou receive orders --from earliest --count 1", environ)
        status = ("cluster", "status", "--dir", str(tmp_path / "cluster"))
        wait_until(lambda: run_command(*status).code == 0)
        assert cluster.stop() == 0

    assert bodies(received) == {17}


class Sends:
    """Sends messages with two retries until told to stop; the first error ends it.

    Attributes:
        statuses: of each message, by its body.
    """

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self.statuses: dict[bytes, SendStatus] = {}
        self.is_over = False

    async def run(self) -> None:
        # Longer than by default, because a loaded machine starts processes slowly.
        config = ProducerConfig(refused_attempts_max=3, send_timeout_ms=20_000)
        async with Producer("producers", self._namesrv, config=config) as producer:
            while not self.is_over:
                body = b"message %d;" % len(self.statuses)
                receipt = await producer.send(Message("orders", body))
                self.statuses[body] = receipt.status
                await asyncio.sleep(0.02)


def write_store(path: Path) -> None:
    """Write the store of a broker that ran alone, with a message."""
    path.mkdir()
    store = MessageStore.open(OsDisk(path), StoreConfig(), 1_700_000_000_000, pid=1)
    store.writer.append(draft(b'{"id": 17}', topic="orders"), 1_700_000_000_001)
    store.writer.write()
    store.writer.dispatch(store.writer.appended_position)
    store.close(1_700_000_000_002)


async def restart_during_sends(
    namesrv: str, restart: Callable[[], object]
) -> dict[bytes, SendStatus]:
    """Send messages until the restart has ended; return the status of each."""
    sends = Sends(namesrv)
    sending = asyncio.create_task(sends.run())
    working = asyncio.create_task(asyncio.to_thread(restart))
    await asyncio.wait((sending, working), return_when=asyncio.FIRST_COMPLETED)
    sends.is_over = True
    await sending
    await working
    return sends.statuses


def test_single_broker_becomes_a_set_that_is_restarted_without_an_error(
    tmp_path: Path,
    shell: Callable[[str, Mapping[str, str]], str],
    command: Callable[..., Outcome],
) -> None:
    write_store(tmp_path / "store")
    for line in commands_of("From a single broker"):
        shell(line, {})
    first, elect = commands_of("Masters that are replaced")
    script = PAGE.partition("```sh\n")[2].partition("```")[0]
    *words, _, directory = first.removeprefix("kourou cluster ").split()
    # Longer than by default, because a loaded machine is slow to remove a slave from its set.
    environ = {"KOUROU_BROKER_SLAVE_TIMEOUT_MS": "20000"}
    with LocalCluster(tmp_path / directory, *words, environ=environ) as cluster:
        ready = cluster.ready()
        namesrv = ready["namesrv"]
        sent = asyncio.run(restart_during_sends(namesrv, lambda: shell(script, {})))
        at = (("--dir", str(tmp_path / directory)), ("-n", namesrv))
        statuses = [command("cluster", "status", "--json", *where) for where in at]
        shell(elect, {})
        code = cluster.stop()

    acknowledged = [body for body, status in sent.items() if status is SendStatus.SEND_OK]
    assert len(acknowledged) > 10
    assert len(sent) - len(acknowledged) <= 1, "only one that is in flight during the move"
    for number in (1, 2):
        log = log_of(tmp_path / directory / f"broker-a-{number}")
        assert all(body in log for body in acknowledged)
        assert b'{"id": 17}' in log, "also what the broker had alone"
    brokers = [one for one in ready["members"] if one["broker"]]
    assert [(one["child"], one["id"]) for one in brokers] == [("broker-a-1", 1), ("broker-a-2", 2)]
    assert sorted(one["role"] for one in brokers) == ["master", "slave"]
    starts = [one["child"] for one in cluster.of("child.started") if one["starts"] == 2]
    assert starts == ["broker-a-2", "broker-a-1"]
    elected = [(one["child"], one["epoch"]) for one in cluster.of("master.elected")]
    assert elected[0][0] == "broker-a-1", "the first replica, whose store is not empty"
    assert {child for child, _ in elected} == {"broker-a-1", "broker-a-2"}
    for status in statuses:
        (one,) = json.loads(status.out)["sets"]
        assert (status.code, one["copies"], one["minimum"], one["in_sync"]) == (0, 2, 1, [1, 2])
        assert one["epoch"] in [epoch for _, epoch in elected]
        servers = {one["id"]: one for one in json.loads(status.out)["servers"] if one["id"]}
        roles = [servers[id_]["role"] for id_ in (1, 2)]
        assert sorted(roles) == ["master", "slave"]
        assert servers[1 + roles.index("slave")]["lag"] == 0
    ends = [one["child"] for one in cluster.of("child.ended")][-len(ready["members"]) :]
    assert code == 0
    assert ends[0] == elected[-1][0], "the master stops first"
    assert ends[2] == "controller-1"
