"""Tests of `kourou doctor`: its findings and remedies."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kourou.cli.doctor import (
    check_cluster,
    judge_address,
    judge_clock,
    judge_from_outside,
    judge_groups,
    judge_masters,
    judge_store,
)
from kourou.cli.doctor_machine import (
    Finding,
    Port,
    State,
    check_ports,
    check_store,
    check_versions,
    judge_open_files,
    judge_space,
    judge_sync,
)
from kourou.cli.machine import PortOwner, machine_addresses, port_owners
from kourou.clock import SystemClock
from kourou.disk import OsDisk
from kourou.remoting.network import is_loopback
from kourou.testing.process import Outcome, Serving

GIB = 1024**3
HERE = "127.0.0.1"
UNLIMITED = 2**63


def states(findings: list[Finding]) -> list[str]:
    return [finding.state.value for finding in findings]


@pytest.fixture
def taken() -> Iterator[int]:
    """Yield a port on which this process listens."""
    with socket.create_server((HERE, 0)) as server:
        yield server.getsockname()[1]


def nobody_known(ports: object) -> dict[int, PortOwner]:
    return {}


def test_free_port_is_ok(taken: int) -> None:
    with socket.create_server((HERE, 0)) as server:
        free: int = server.getsockname()[1]
    (finding,) = check_ports(HERE, [Port(free, "the broker", "--port")])
    assert (finding.state, finding.detail) == (State.OK, "free, for the broker")


def test_taken_port_is_reported_with_owner_and_remedy(taken: int) -> None:
    owner = PortOwner(42, "/usr/bin/nginx -g daemon")
    needed, other = Port(taken, "the broker", "--port"), Port(taken, "x", "--y", is_needed=False)

    (wrong,) = check_ports(HERE, [needed], find_owners=lambda _: {taken: owner})
    (note,) = check_ports(HERE, [other], find_owners=nobody_known)
    (ours,) = check_ports(HERE, [needed], find_owners=lambda _: {taken: PortOwner(7, "kourou s")})
    (answers,) = check_ports(HERE, [needed], answered=[taken], find_owners=nobody_known)

    assert wrong.state is State.WRONG
    assert "in use by nginx (pid 42)" in wrong.detail
    assert "--port" in wrong.remedy
    assert (note.state, "another process" in note.detail) == (State.NOTE, True)
    assert (ours.state, ours.detail) == (State.OK, "the broker, by kourou (pid 7)")
    assert answers.state is State.OK


def test_address_of_another_machine_is_wrong() -> None:
    (finding,) = check_ports("192.0.2.77", [Port(20_000, "the broker", "--port")])
    assert finding.state is State.WRONG
    assert "cannot listen on 192.0.2.77:20000" in finding.detail


def test_port_owner_is_found_on_linux(taken: int) -> None:
    is_told = Path("/proc/net/tcp").exists()
    pids = {port: owner.pid for port, owner in port_owners([taken, 1]).items()}
    assert pids == ({taken: os.getpid()} if is_told else {})


def test_port_owners_are_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid t inode"
    line = "   0: 0100007F:{:04X} 00000000:0000 {} 00000000:00000000 00:00000000 0 0 0 {} 1"
    tables = [line.format(10911, "0A", 77), line.format(9876, "01", 78)]
    (tmp_path / "net/tcp").write_text("\n".join([head, *tables]) + "\n")
    fds = tmp_path / "311" / "fd"
    fds.mkdir(parents=True)
    (fds / "3").symlink_to("socket:[77]")
    (fds / "4").symlink_to("socket:[78]")
    (tmp_path / "311" / "cmdline").write_bytes(b"java\0-cp\0rocketmq-broker.jar\0")
    (tmp_path / "self").mkdir()

    found = port_owners([10911, 9876], tmp_path)

    assert found == {10911: PortOwner(311, "java -cp rocketmq-broker.jar")}
    assert (str(found[10911]), found[10911].is_broker) == ("RocketMQ (pid 311)", True)
    assert port_owners([10911], tmp_path / "none") == {}


@pytest.mark.parametrize(
    ("soft", "hard", "state", "remedy"),
    [
        (UNLIMITED, UNLIMITED, State.OK, ""),
        (65_536, 65_536, State.OK, ""),
        (1_024, UNLIMITED, State.NOTE, "ulimit -n 65536"),
        (256, 4_096, State.WRONG, "ulimit -n 4096"),
    ],
)
def test_low_limit_of_open_files_is_reported(
    soft: int, hard: int, state: State, remedy: str
) -> None:
    finding = judge_open_files(soft, hard, unlimited=UNLIMITED)
    assert finding.state is state
    assert finding.remedy.startswith(remedy)


def test_findings_for_space_and_syncs() -> None:
    place = Path("/data")
    assert judge_space(place, 100 * GIB, 50 * GIB, 50 * GIB).state is State.OK
    assert judge_space(place, 100 * GIB, 5 * GIB, 5 * GIB).state is State.NOTE
    assert judge_space(place, 100 * GIB, GIB, GIB // 4).state is State.WRONG
    judged = [judge_sync(typical, 300.0).state for typical in (0.001, 1.0, 50.0, 250.0)]
    assert judged == [State.NOTE, State.OK, State.NOTE, State.WRONG]


def test_store_state_is_reported_without_leaving_files(tmp_path: Path) -> None:
    absent = check_store(tmp_path / "none")
    store = tmp_path / "store"
    (store / "commitlog").mkdir(parents=True)
    closed = check_store(store)
    (store / "abort").touch()
    crashed = check_store(store)
    disk = OsDisk(store)
    unlock = disk.lock("lock")
    used = check_store(store)
    unlock()
    disk.close()

    assert "none yet" in absent[0].detail
    assert "closed cleanly" in closed[0].detail
    assert (crashed[0].state, "store check" in crashed[0].remedy) == (State.NOTE, True)
    assert (used[0].state, "in use" in used[0].detail) == (State.OK, True)
    assert [finding.check for finding in closed] == ["store", "disk space", "disk sync"]
    assert sorted(os.listdir(store)) == ["abort", "commitlog", "lock"]  # noqa: PTH208
    assert os.listdir(tmp_path) == ["store"]  # noqa: PTH208


def test_file_instead_of_a_store_directory_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("x")
    (finding,) = check_store(tmp_path / "store")
    assert (finding.state, "not a directory" in finding.detail) == (State.WRONG, True)
    assert "--store" in finding.remedy


def test_slow_syncs_are_measured(tmp_path: Path) -> None:
    now_s = iter(range(1_000))
    found = check_store(tmp_path, lambda: float(next(now_s)))
    assert found[-1].state is State.WRONG
    assert found[-1].detail.startswith("1000.00 ms for a sync")


def test_loopback_broker_address_is_wrong_in_a_cluster() -> None:
    at_home = judge_address("b", "127.0.0.1:10911", ["localhost:9876"], "V5_5_0")
    abroad = judge_address("b", "127.0.0.1:10911", ["10.0.0.5:9876"], "V5_5_0")
    fine = judge_address("b", "10.0.0.6:10911", ["10.0.0.5:9876"], "V5_5_0")
    assert states([at_home, abroad, fine]) == ["ok", "wrong", "ok"]
    assert "--advertise" in abroad.remedy


@pytest.mark.parametrize(
    ("here_ms", "state", "reported"),
    [
        (1_000_000 + 63_500, State.OK, "agrees"),
        (1_000_000 + 63_500 - 60_000, State.WRONG, "60 s ahead of"),
        (1_000_000 + 63_500 + 7_000, State.WRONG, "7 s behind"),
    ],
)
def test_clock_difference_is_reported(here_ms: int, state: State, reported: str) -> None:
    info = {
        "bootTimestamp": "1000000",
        "runtime": "[ 0 days, 0 hours, 1 minutes, 3 seconds ]",
    }
    finding = judge_clock("b", info, here_ms)
    assert (finding.state, reported in finding.detail) == (state, True)
    assert judge_clock("b", {}, here_ms).state is State.NOTE


@pytest.mark.parametrize(
    ("info", "state", "reported"),
    [
        ({"brokerActive": "true", "commitLogDiskRatio": "0.22"}, State.OK, "22% full"),
        ({"kourouUnwritable": "full"}, State.WRONG, "refuses sends"),
        ({"commitLogDiskRatio": "0.95"}, State.WRONG, "95% full"),
        ({"dispatchBehindBytes": str(GIB)}, State.NOTE, "1,024 MiB"),
        ({"commitLogDiskRatio": "-1", "dispatchBehindBytes": "?"}, State.OK, "accepts sends"),
    ],
)
def test_findings_for_the_store_of_a_broker(
    info: dict[str, str], state: State, reported: str
) -> None:
    finding = judge_store("b", info)
    assert (finding.state, reported in finding.detail) == (state, True)


def test_versions_and_extras_are_reported() -> None:
    first, *extras = check_versions()
    assert "kourou" in first.detail
    names = ["extra fast", "extra server", "extra proxy"]
    assert [finding.check for finding in extras] == names


def test_missing_packages_are_a_note_with_their_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    _, *extras = check_versions()
    assert {finding.state for finding in extras} == {State.NOTE}
    proxy = extras[-1]
    assert proxy.detail.startswith("protobuf, hpack missing: gRPC clients")
    assert proxy.remedy == "pip install 'kourou[proxy]'"


@pytest.mark.slow
def test_healthy_cluster_has_no_problems(
    kourou: Callable[..., Outcome], serving: Serving, tmp_path: Path
) -> None:
    broker_port = serving.broker.rpartition(":")[2]
    ports = ("--namesrv-port", serving.namesrv.rpartition(":")[2], "--port", broker_port)
    with socket.create_server((HERE, 0)) as server:
        grpc_port = server.getsockname()[1]
    options = ("--grpc-port", str(grpc_port), "--store", str(tmp_path / "store"), "--json")
    outcome = kourou("doctor", *ports, *options)
    reported = json.loads(outcome.out)
    found = {finding["check"]: finding for finding in reported["findings"]}

    wrong = [finding for finding in reported["findings"] if finding["state"] == "wrong"]
    assert (outcome.code, wrong) == (0, [])
    assert reported["ok"] is True
    assert "has 1 broker" in found[f"name server {serving.namesrv}"]["detail"]
    assert serving.broker in found["broker broker-a"]["detail"]
    assert found["clock of broker-a"]["state"] == "ok"
    assert "the broker, by kourou" in found[f"port {broker_port}"]["detail"]
    assert "topics must exist (`kourou topic create" in found[f"port {grpc_port}"]["detail"]


@pytest.mark.parametrize(
    ("address", "failure", "state", "reported"),
    [
        ("10.0.0.5:10911", None, State.OK, "the address that 10.0.0.5:9876 returns"),
        ("127.0.0.1:10911", None, State.WRONG, "which is their own machine"),
        ("[::1]:10911", None, State.WRONG, "which is their own machine"),
        ("10.0.0.6:10911", "refused", State.WRONG, "which does not answer: refused"),
    ],
)
def test_findings_for_addresses_returned_to_other_machines(
    address: str, failure: str | None, state: State, reported: str
) -> None:
    finding = judge_from_outside("b", address, "10.0.0.5:9876", failure)
    assert (finding.state, reported in finding.detail) == (state, True)
    assert ("--advertise" in finding.remedy) == (state is State.WRONG)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "state"),
    [
        ((), None),
        (("--listen", "0.0.0.0"), State.OK),  # noqa: S104  # the case
        (("--listen", "0.0.0.0", "--advertise", "127.0.0.1"), State.WRONG),  # noqa: S104
        (("--listen", "0.0.0.0", "--advertise", "10.255.255.1:1"), State.WRONG),  # noqa: S104
    ],
)
def test_cluster_is_checked_from_the_address_for_other_machines(
    tmp_path: Path, options: tuple[str, ...], state: State | None
) -> None:
    (outside,) = machine_addresses()[:1] or ("127.0.0.2",)
    with Serving.start(tmp_path, *options) as serving:
        look = asyncio.run(
            check_cluster(
                serving.namesrv,
                2.0,
                SystemClock(),
                is_expected=True,
                find_addresses=lambda: [outside],
            )
        )
    texts = (f"clients of {outside}:", f"address that {outside}:")
    found = [one.state for one in look.findings if any(text in one.detail for text in texts)]
    assert found == ([] if state is None else [state])


def test_machine_addresses_are_local_and_not_loopback() -> None:
    for host in machine_addresses():
        assert not is_loopback(host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as bound:
            bound.bind((host, 0))


@pytest.mark.slow
def test_unreachable_name_server_is_wrong_if_it_was_named(
    command: Callable[..., Outcome], tmp_path: Path
) -> None:
    outcome = command("doctor", "-n", "127.0.0.1:1", "--store", str(tmp_path))

    lines = outcome.out.splitlines()
    (begin,) = [n for n, line in enumerate(lines) if "name server" in line and ":1 " in line]
    text = " ".join(line.strip() for line in lines[begin : begin + 6])
    assert outcome.code == 1
    assert text.startswith("wrong")
    assert "kourou serve" in text
    assert "found" in lines[-1]
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 80


def test_groups_whose_members_differ_are_a_problem_with_a_remedy() -> None:
    assert judge_groups("b", {}) == []
    (finding,) = judge_groups("b", {"kourouDifferingGroups": "billing,thumbs"})
    assert finding.state is State.WRONG
    assert "different subscriptions in 2 groups: billing, thumbs" in finding.detail
    assert "kourou group describe billing" in (finding.remedy or "")


def test_name_without_a_registered_master_is_a_problem() -> None:
    (finding,) = judge_masters([("a", 1), ("a", 0), ("b", 2), ("b", 1)])

    assert (finding.state, finding.check) == (State.WRONG, "broker b")
    assert "no master" in finding.detail
