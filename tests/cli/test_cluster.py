"""Tests of `kourou cluster`: start, restart of killed processes, stop, refusals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from kourou.cli.cluster_start import _held_ports, _is_free, promise_text, screen_lines
from kourou.client.config import ProducerConfig
from kourou.client.send_receipt import SendStatus
from kourou.client.sending.producer import Producer
from kourou.model.message import Message
from kourou.supervising.directory import ClusterDirectory
from kourou.supervising.topology import Role, Shape, create_topology
from kourou.testing.process import Outcome, run_command, start_command
from tests.local_clusters import PATIENCE_S, LocalCluster, is_alive, wait_until
from tests.replica_stores import log_of

pytestmark = pytest.mark.slow
Command = Callable[..., Outcome]
is_free = partial(_is_free, is_requested=False)


def test_start_reports_masters_and_stops_in_order(tmp_path: Path) -> None:
    environ = {"KOUROU_BROKER_FLUSH_DISK_TYPE": "ASYNC_FLUSH"}
    words = ("--brokers", "1", "--replicas", "2")
    with LocalCluster(tmp_path, *words, environ=environ) as cluster:
        ready = cluster.ready()
        code = cluster.stop()

    assert [(m["child"], m["role"], m["broker"], m["id"]) for m in ready["members"]] == [
        ("namesrv-1", "namesrv", None, None),
        ("broker-a", "master", "broker-a", 0),
        ("broker-a-1", "slave", "broker-a", 1),
    ]
    assert {m["child"]: m["pid"] for m in ready["members"]} == cluster.pids
    assert (ready["replicas"], ready["in_sync_replicas"]) == (2, 2)
    assert ready["flush_disk_type"] == "ASYNC_FLUSH"
    assert code == 0
    ends = [(one["child"], one["exit_code"]) for one in cluster.of("child.ended")]
    assert ends == [("broker-a", 0), ("broker-a-1", 0), ("namesrv-1", 0)]
    assert cluster.events[-1] | {"at_ms": 0} == {
        "event": "cluster.stopped",
        "at_ms": 0,
        "unclean": [],
    }
    assert not (tmp_path / "broker-a" / "abort").exists()


def test_second_signal_kills_a_process_that_does_not_stop(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, "--brokers", "1") as cluster:
        cluster.ready()
        os.kill(cluster.pids["broker-a"], signal.SIGSTOP)
        cluster.process.send_signal(signal.SIGTERM)
        cluster.wait("cluster.stopping")
        cluster.process.send_signal(signal.SIGTERM)  # a duplicate
        cluster.send_until_event(signal.SIGTERM, "child.killed")
        cluster.wait("cluster.stopped")
        code = cluster.process.wait(PATIENCE_S)

    assert code == 130
    assert {one["child"] for one in cluster.of("child.killed")} >= {"broker-a"}
    assert cluster.events[-1]["unclean"][0] == "broker-a"


def test_processes_end_with_a_killed_supervisor_and_start_again_on_their_ports(
    tmp_path: Path,
) -> None:
    with LocalCluster(tmp_path, "--brokers", "1") as cluster:
        before = cluster.ready()
        pids = cluster.pids.values()
        refused = run_command("cluster", "--dir", str(tmp_path))
        cluster.process.kill()
        cluster.process.wait(PATIENCE_S)
    wait_until(lambda: not any(map(is_alive, pids)))

    assert refused.code == 3
    assert f"is in use by another `kourou cluster` (pid {cluster.process.pid})" in refused.err
    with LocalCluster(tmp_path) as cluster:
        after = cluster.ready()
        assert cluster.stop(signal.SIGINT) == 0
    addresses = [[m["address"] for m in ready["members"]] for ready in (before, after)]
    assert addresses[0] == addresses[1]


async def send(namesrv: str, topic: str, count: int, prefix: str) -> Counter[tuple[str, str]]:
    """Send messages one after the other; return (body, broker) of each acknowledged one."""
    acknowledged: Counter[tuple[str, str]] = Counter()
    config = ProducerConfig(send_timeout_ms=20_000)
    async with Producer("producers", namesrv, config=config) as producer:
        for number in range(count):
            body = f"{prefix}{number}"
            receipt = await producer.send(Message(topic, body.encode()))
            if receipt.status is SendStatus.SEND_OK:
                acknowledged[body, receipt.queue.broker_name] += 1
    return acknowledged


def received(command: Command, namesrv: str, topic: str, count: int) -> list[str]:
    """Consume at least `count` messages from the beginning, and return their bodies."""
    words = ("receive", topic, "--from", "earliest", "--count", str(count), "--timeout", "60")
    outcome = command(*words, "-n", namesrv)
    assert outcome.code == 0, outcome.err
    return [str(row["body"]) for row in outcome.rows]


def received_all(command: Command, namesrv: str, topic: str, wanted: set[str]) -> list[str]:
    """Consume until all wanted bodies came, beside those that a retry has stored twice."""
    bodies = received(command, namesrv, topic, len(wanted))
    while not wanted <= set(bodies) and len(set(bodies)) < len(bodies):
        stored_twice = len(bodies) - len(set(bodies))
        bodies = received(command, namesrv, topic, len(wanted) + stored_twice)
    return bodies


def test_cluster_stops_when_nothing_reads_its_events(tmp_path: Path) -> None:
    words = ("cluster", "--brokers", "1", "--dir", str(tmp_path), "--namesrv-port", "0", "--json")
    process = start_command(*words)
    assert process.stdout is not None
    started = json.loads(process.stdout.readline())
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()

    assert (process.wait(PATIENCE_S), err) == (0, "")
    assert not is_alive(started["pid"])


def test_topics_are_on_all_brokers_and_a_killed_one_loses_nothing(
    tmp_path: Path, command: Command
) -> None:
    with LocalCluster(tmp_path, "--brokers", "2") as cluster:
        namesrv = cluster.ready()["namesrv"]
        made = command("topic", "create", "made", "--json", "-n", namesrv)
        by_first_send = asyncio.run(send(namesrv, "unmade", 40, "u"))

        async def kill_midway() -> Counter[tuple[str, str]]:
            first = await send(namesrv, "made", 40, "a")
            sending = asyncio.create_task(send(namesrv, "made", 200, "b"))
            await asyncio.sleep(0.05)
            await asyncio.to_thread(cluster.kill, "broker-b")
            return first + await sending + await send(namesrv, "made", 40, "c")

        acknowledged = asyncio.run(kill_midway())
        distinct = {body for body, _ in acknowledged}
        bodies = received_all(command, namesrv, "made", distinct)
        unmade = received(command, namesrv, "unmade", 40)
        code = cluster.stop()

    assert json.loads(made.out)["brokers"] == ["broker-a", "broker-b"]
    assert {broker for _, broker in by_first_send} == {"broker-a", "broker-b"}
    for prefix in "ac":
        brokers = {broker for body, broker in acknowledged if body.startswith(prefix)}
        assert brokers == {"broker-a", "broker-b"}
    assert len(distinct) == 280, "a producer retries at the other broker"
    assert len(by_first_send) == 40
    assert set(unmade) == {body for body, _ in by_first_send}
    assert distinct <= set(bodies)
    assert code == 0


def test_acknowledged_messages_survive_on_both_copies_after_a_kill_of_the_master(
    tmp_path: Path,
) -> None:
    with LocalCluster(tmp_path, "--brokers", "1", "--replicas", "2") as cluster:
        namesrv = cluster.ready()["namesrv"]

        async def kill_midway() -> Counter[tuple[str, str]]:
            sending = asyncio.create_task(send(namesrv, "orders", 150, "m"))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(cluster.kill, "broker-a")
            return await sending

        acknowledged = asyncio.run(kill_midway())
        cluster.process.kill()  # no stop in order, in which the slave would catch up

    copies = [log_of(tmp_path / name) for name in ("broker-a", "broker-a-1")]
    assert len(acknowledged) > 100
    for body, _ in acknowledged:
        assert all(body.encode() in copy for copy in copies), body


def test_send_is_not_acknowledged_without_a_second_copy(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, "--brokers", "1", "--replicas", "2") as cluster:
        namesrv = cluster.ready()["namesrv"]
        before = asyncio.run(send(namesrv, "orders", 1, "before"))
        os.kill(cluster.pids["broker-a-1"], signal.SIGSTOP)
        alone = asyncio.run(send(namesrv, "orders", 1, "alone"))
        os.kill(cluster.pids["broker-a-1"], signal.SIGCONT)
        after = asyncio.run(send(namesrv, "orders", 1, "after"))
        assert cluster.stop() == 0

    assert [counts.total() for counts in (before, alone, after)] == [1, 0, 1]


def test_process_that_cannot_start_is_named_once_and_recovers(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    with directory.locked():
        found = directory.settle(
            {"brokers": 1}, lambda shape: create_topology(shape, 0, is_free, Random(os.getpid()))
        )
    (broker,) = found.of_role(Role.MASTER)
    with LocalCluster(tmp_path) as cluster:
        with socket.create_server(("127.0.0.1", broker.port)):
            failing = cluster.wait("child.failing")
        cluster.ready()
        assert cluster.stop() == 0

    assert (failing["child"], failing["failures"]) == ("broker-a", 3)
    assert failing["last_error"].startswith(f"Error: cannot listen on 127.0.0.1:{broker.port}")
    assert failing["log"] == str(tmp_path / "logs" / "broker-a.log")
    assert len(cluster.of("child.failing")) == 1
    pauses = [end["restart_in_s"] for end in cluster.of("child.ended")][:3]
    assert pauses == [0, 0.5, 1]


def test_ports_are_held_for_their_servers() -> None:
    topology = create_topology(Shape(brokers=1), 0, is_free, Random(os.getpid() + 1))
    port = topology.members[1].port
    with _held_ports(topology):
        held = not is_free(port)
        socket.create_server(("127.0.0.1", port)).close()  # as a server does

    assert held == (sys.platform == "linux")
    assert is_free(port)


def test_wrong_setting_of_the_brokers_ends_the_start(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("flushDiskTyp=SYNC_FLUSH\n")

    outcome = run_command(
        *("cluster", "--brokers", "1", "--dir", str(tmp_path / "c"), "--namesrv-port", "0"),
        *("--config", str(conf)),
    )

    assert outcome.code == 2
    assert "Error: the cluster cannot run: broker-a: Error: " in outcome.err
    assert "did you mean flushDiskType?" in outcome.err


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (("--brokers", "0"), 2, "--brokers is 0; it must be 1 to 26"),
        (("--brokers", "1", "--replicas", "9"), 2, "--replicas is 9; it must be 1 to 5"),
        (("--brokers", "1", "--namesrvs", "0"), 2, "--namesrvs is 0; it must be 1 to 9"),
        (("--brokers", "1", "--controllers", "10"), 2, "--controllers is 10; it must be 0 to 9"),
        (("--brokers", "1", "--config", "none.conf"), 2, "--config none.conf is not a file"),
        ((), 2, "has no cluster yet: add --brokers"),
    ],
)
def test_wrong_option_is_refused(
    tmp_path: Path, command: Command, options: tuple[str, ...], code: int, text: str
) -> None:
    outcome = command("cluster", "--dir", str(tmp_path / "c"), *options)

    assert (outcome.code, text in outcome.err) == (code, True), outcome.err
    assert not (tmp_path / "c" / "cluster.json").exists()


def test_several_controllers_without_etcd_are_refused(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    wanted = ("--brokers", "1", "--controllers", "3")

    outcome = command("cluster", "--dir", str(tmp_path / "c"), *wanted, "--namesrv-port", "0")

    assert outcome.code == 2
    assert "install it (Debian's package etcd-server), or --controllers 1" in outcome.err
    assert not (tmp_path / "c" / "cluster.json").exists()


def test_cluster_whose_etcd_is_no_longer_installed_is_refused(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    directory = ClusterDirectory(tmp_path)
    with directory.locked():
        directory.settle(
            {"brokers": 1, "controllers": 3},
            lambda shape: create_topology(shape, 0, lambda _: True, Random(0), has_etcd=True),
        )

    outcome = command("cluster", "--dir", str(tmp_path))

    assert outcome.code == 2
    assert f"the cluster in {tmp_path} needs the program etcd" in outcome.err


def test_directory_is_required(command: Command) -> None:
    outcome = command("cluster", "--brokers", "1")

    assert (outcome.code, "add --dir DIR" in outcome.err) == (2, True)


def settle_cluster(path: Path, brokers: int, namesrv_port: int) -> None:
    """Give a directory the topology of a cluster, which is not started."""
    directory = ClusterDirectory(path)
    with directory.locked():
        directory.settle(
            {"brokers": brokers},
            lambda shape: create_topology(shape, namesrv_port, lambda _: True, Random(0)),
        )


def test_other_topology_is_refused(tmp_path: Path, command: Command) -> None:
    settle_cluster(tmp_path, 2, 0)

    outcome = command("cluster", "--dir", str(tmp_path), "--brokers", "3")

    assert outcome.code == 2
    assert "has a cluster of --brokers 2 --replicas 1 --namesrvs 1, not --brokers 3" in outcome.err


def test_other_port_of_the_name_server_is_refused(tmp_path: Path, command: Command) -> None:
    settle_cluster(tmp_path, 1, 9876)

    outcome = command("cluster", "--dir", str(tmp_path), "--namesrv-port", "9877")

    assert outcome.code == 2
    assert f"server of {tmp_path} has port 9876, not --namesrv-port 9877" in outcome.err


def test_name_server_port_in_use_is_refused(tmp_path: Path, command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        outcome = command(
            *("cluster", "--brokers", "1", "--dir", str(tmp_path), "--namesrv-port", port)
        )

    assert outcome.code == 3
    assert f"cannot listen on 127.0.0.1:{port}: the port is in use" in outcome.err
    assert not (tmp_path / "cluster.json").exists()


def test_screen_shows_masters_promise_and_next_steps(tmp_path: Path) -> None:
    words = ("cluster", "--brokers", "1", "--dir", str(tmp_path), "--namesrv-port", "0")
    process = start_command(*words)
    assert process.stdout is not None
    screen: list[str] = []
    while not screen or "cluster status" not in screen[-1]:
        screen.append(process.stdout.readline())
        assert screen[-1], "it ended before the screen did"
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, err) == (0, "")
    text = " ".join(" ".join(screen).split())
    assert "a cluster on this machine Ctrl-C to stop BROKER ROLE ID ADDRESS CONSOLE PID" in text
    assert "broker-a master 0 127.0.0.1:" in text
    assert "Promise One copy: an acknowledged message is on the disk of its master." in text
    assert "No failover: while a master is down, its queues accept no sends." in text
    assert rest.splitlines()[-2:] == [
        "Stopping: masters, then slaves, then name servers.",
        "Stopped.",
    ]


def test_screen_fits_80_columns_with_short_paths() -> None:
    shape = Shape(brokers=3, replicas=2)
    topology = create_topology(shape, 0, lambda _: True, Random(0))
    members = [
        {"child": m.name, "role": m.role.value, "broker": m.broker, "id": m.broker_id}
        | {"address": m.address, "console": f"http://127.0.0.1:{m.console_port}", "pid": 4_000_000}
        for m in topology.members
    ]
    lines = screen_lines(
        {"version": "0.1.0", "directory": "/srv/c", "namesrv": topology.namesrv}
        | {"controllers": None, "grpc": None}
        | {"replicas": 2, "in_sync_replicas": 2, "flush_disk_type": "SYNC_FLUSH"}
        | {"members": members}
    )

    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("replicas", "flush", "text"),
    [
        (1, "SYNC", "One copy: an acknowledged message is on the disk of its master."),
        (1, "ASYNC", "is in the system's memory; a power failure can lose it."),
        (2, "SYNC", "An acknowledged message is on the disks of a master and a slave."),
        (2, "ASYNC", "in the memory of a master and a slave; a power failure can lose it."),
        (3, "SYNC", "of a master and a slave; one more copy follows."),
        (5, "SYNC", "of a master and a slave; 3 more copies follow."),
    ],
)
def test_promise_follows_copies_and_flush_mode(replicas: int, flush: str, text: str) -> None:
    ready = {"replicas": replicas, "in_sync_replicas": min(replicas, 2), "controllers": None}

    assert text in promise_text(ready | {"flush_disk_type": f"{flush}_FLUSH"})
