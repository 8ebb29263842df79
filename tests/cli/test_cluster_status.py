"""Tests of `kourou cluster status`: sets, lags, problems, exit codes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kourou.cli.cluster_status import BrokerSet, Server, judge, status_exit_code, with_status
from kourou.cli.controlled_sets import ControlledSet
from kourou.protocol.brokers import HAClientRuntimeInfo, HARuntimeInfo
from kourou.protocol.controller.headers import ReplicaIdentity, ReplicasInfo
from kourou.supervising.directory import ClusterDirectory
from kourou.supervising.topology import create_topology
from kourou.testing.process import Outcome, Serving
from tests.local_clusters import LocalCluster, wait_until

Command = Callable[..., Outcome]
MASTER = Server(name="a", role="master", id=0, address="h:1", log_end=900, minimum=2)
SLAVE = Server(name="a", role="slave", id=1, address="h:2", log_end=700, is_connected=True)
NAMESRV = Server(name="namesrv-1", role="namesrv", id=None, address="h:3")


def test_lag_is_what_the_slave_does_not_have() -> None:
    servers, sets = judge([NAMESRV, MASTER, SLAVE])

    assert [one.lag for one in servers] == [None, None, 200]
    assert sets == [BrokerSet(broker="a", copies=2, minimum=2, master="h:1")]
    assert status_exit_code(servers, sets) == 0


def test_slave_that_is_ahead_of_the_query_of_its_master_has_no_lag() -> None:
    servers, _ = judge([MASTER, replace(SLAVE, log_end=950)])

    assert servers[1].lag == 0


@pytest.mark.parametrize(
    ("changed", "copies", "state", "code"),
    [
        ({"slave": {"problem": "down"}}, 1, "too few copies: sends are not acknowledged", 1),
        ({"slave": {"is_connected": False}}, 1, "too few copies: sends are not acknowledged", 1),
        ({"master": {"problem": "down"}}, 1, "no master: its queues accept no sends", 1),
        ({"master": {"minimum": 1}, "slave": {"problem": "down"}}, 1, "", 1),
        ({"namesrv": {"problem": "down"}}, 2, "", 1),
        ({name: {"problem": "x"} for name in ("namesrv", "master", "slave")}, 0, "no master", 3),
    ],
)
def test_each_problem_has_an_exit_code(
    changed: Mapping[str, Mapping[str, Any]], copies: int, state: str, code: int
) -> None:
    given = {"namesrv": NAMESRV, "master": MASTER, "slave": SLAVE}
    servers, sets = judge([replace(one, **changed.get(name, {})) for name, one in given.items()])

    assert [one.copies for one in sets] == [copies]
    assert sets[0].problem.startswith(state)
    assert bool(sets[0].problem) == bool(state)
    assert status_exit_code(servers, sets) == code


def test_set_without_a_registered_master_has_a_problem() -> None:
    servers, sets = judge([SLAVE])

    assert sets[0].problem == "no master: its queues accept no sends"
    assert status_exit_code(servers, sets) == 1


REPLICAS = {
    id_: ReplicaIdentity("a", id_, f"h:{id_}", alive) for id_, alive in ((1, True), (2, True))
}


def elected(
    *in_sync: int, master: int | None = 1, dead: int = 0, refusal: str | None = None
) -> ControlledSet:
    """Return a set of the replicas 1 and 2 as controllers know it."""
    replicas = {id_: replace(one, alive=id_ != dead) for id_, one in REPLICAS.items()}
    info = ReplicasInfo(
        master,
        None if master is None else f"h:{master}",
        7,
        9,
        tuple(one for id_, one in replicas.items() if id_ in in_sync),
        tuple(one for id_, one in replicas.items() if id_ not in in_sync),
        refusal,
    )
    return ControlledSet(controllers="h:9", info=info)


@pytest.mark.parametrize(
    ("found", "copies", "state", "code"),
    [
        (elected(1, 2), 2, "", 0),
        (elected(1), 1, "too few copies: sends are not acknowledged", 1),
        (elected(1, 2, master=None), 2, "no master: its queues accept no sends", 1),
        (elected(1, 2, refusal="the state is older"), 2, "the state is older", 1),
        (elected(1, 2, dead=1), 1, "no master: its queues accept no sends", 1),
        (elected(1, 2, dead=2), 1, "too few copies: sends are not acknowledged", 1),
        (ControlledSet(controllers="h:9", problem="no controller leads"), 0, "no controller", 1),
    ],
)
def test_elected_set_needs_a_master_and_its_minimum_in_sync(
    found: ControlledSet, copies: int, state: str, code: int
) -> None:
    master = replace(MASTER, id=1)
    slave = replace(SLAVE, id=2)
    servers, (one,) = judge([NAMESRV, master, slave], {"a": found})

    assert one.copies == copies
    assert one.problem.startswith(state)
    assert bool(one.problem) == bool(state)
    assert (one.in_sync, one.minimum) == (found.in_sync_ids, 2)
    assert status_exit_code(servers, [one]) == code


@pytest.mark.parametrize("controlled", [{}, {"a": elected(1, 2)}])
def test_master_that_refuses_sends_is_a_problem_of_its_set(
    controlled: Mapping[str, ControlledSet],
) -> None:
    given = [replace(MASTER, id=1, refusal="refuses sends: full"), replace(SLAVE, id=2)]
    servers, (one,) = judge(given, controlled)

    assert one.problem == "master refuses sends: full"
    assert status_exit_code(servers, [one]) == 1
    if controlled:
        lost = {"a": elected(1, 2, master=None)}
        problem = judge(given, lost)[1][0].problem
        assert problem.endswith("accept no sends; replica 1 refuses sends: full")
    only_slave = [replace(given[0], refusal=""), replace(given[1], refusal="full")]
    assert judge(only_slave, controlled)[1][0].problem == ""


def test_replica_out_of_sync_is_a_problem_of_a_set_that_serves() -> None:
    master = replace(MASTER, minimum=1)
    servers, (one,) = judge([master, replace(SLAVE, id=0)], {"a": elected(1)})

    assert [(server.id, server.problem) for server in servers] == [(1, ""), (2, "not in sync")]
    assert (one.master, one.epoch, one.in_sync, one.problem) == ("h:1", 7, [1], "")
    assert status_exit_code(servers, [one]) == 1


def test_deposed_master_that_does_not_know_it_is_a_problem() -> None:
    servers, (one,) = judge([MASTER, replace(SLAVE, id=2)], {"a": elected(2, master=2)})

    assert (servers[0].role, servers[0].problem) == ("slave", "another replica is master")
    assert one.master == "h:2"


def test_master_reports_its_log_and_a_slave_its_connection() -> None:
    client = HAClientRuntimeInfo(max_offset=5, last_read_timestamp=1)

    assert with_status(MASTER, HARuntimeInfo(True, 7)) == replace(MASTER, log_end=7)
    slave = with_status(
        replace(SLAVE, is_connected=False), HARuntimeInfo(ha_client_runtime_info=client)
    )
    assert (slave.log_end, slave.is_connected) == (5, True)


def test_master_that_members_confirm_is_shown() -> None:
    master = with_status(MASTER, HARuntimeInfo(True, 7, kourou_failsafe=True))
    lost = ControlledSet(controllers="h:9", problem="no controller leads")
    servers, (one,) = judge([master, SLAVE], {"a": lost})

    assert (servers[0].failsafe, servers[1].problem) == (True, "")
    assert one.problem == "failsafe, the members confirm the master: no controller leads"


def test_directory_without_a_cluster_is_refused(tmp_path: Path, command: Command) -> None:
    outcome = command("cluster", "status", "--dir", str(tmp_path))

    assert (outcome.code, "has no cluster: name the --dir" in outcome.err) == (2, True)


def test_cluster_that_is_stopped_has_exit_code_3(tmp_path: Path, command: Command) -> None:
    directory = ClusterDirectory(tmp_path)
    with directory.locked():
        directory.settle(
            {"brokers": 1}, lambda shape: create_topology(shape, 0, lambda _: True, Random(9))
        )
    outcome = command("cluster", "status", "--dir", str(tmp_path), "--json")

    found = json.loads(outcome.out)
    assert (outcome.code, found["healthy"]) == (3, False)
    assert all(one["problem"].startswith("down: ") for one in found["servers"])


@pytest.mark.slow
def test_registered_broker_is_shown(serving: Serving, kourou: Callable[..., Outcome]) -> None:
    outcome = kourou("cluster", "status")

    head, broker, _, *sets = outcome.out.splitlines()
    assert outcome.code == 0
    assert head.split()[:4] == ["SERVER", "ROLE", "ID", "ADDRESS"]
    assert broker.split()[:4] == ["broker-a", "master", "0", serving.broker]
    assert sets[1].split() == ["broker-a", "1", "1", "ok"]


@pytest.mark.slow
def test_status_follows_the_processes(tmp_path: Path, command: Command) -> None:
    with LocalCluster(tmp_path, "--brokers", "1", "--replicas", "2") as cluster:
        namesrv = cluster.ready()["namesrv"]

        def status(*words: str) -> tuple[int, dict[str, Any]]:
            outcome = command("cluster", "status", "--json", "--timeout", "1", *words)
            return outcome.code, json.loads(outcome.out)

        wait_until(lambda: status("--dir", str(tmp_path))[0] == 0)
        assert command("send", "orders", "x", "-n", namesrv).code == 0
        code, found = status("--dir", str(tmp_path))
        by_namesrv = status("-n", namesrv)
        os.kill(cluster.pids["broker-a-1"], signal.SIGSTOP)
        without_slave = status("--dir", str(tmp_path))
        os.kill(cluster.pids["broker-a-1"], signal.SIGCONT)
        master = found["sets"][0]["master"]
        changed = command("broker", "set", master, "brokerPermission=4", "-n", namesrv)
        read_only = status("-n", namesrv)
        assert cluster.stop() == 0

    servers = {(one["name"], one["id"]): one for one in found["servers"]}
    assert code == 0
    (found_set,) = found["sets"]
    assert (found_set["copies"], found_set["minimum"], found_set["problem"]) == (2, 2, "")
    assert found_set["master"] == servers["broker-a", 0]["address"]
    assert (found_set["epoch"], found_set["in_sync"]) == (None, None), "its master is fixed"
    assert servers["namesrv-1", None]["pid"] == cluster.pids["namesrv-1"]
    assert servers["broker-a", 1]["starts"] == 1
    assert servers["broker-a", 0]["log_end"] == servers["broker-a", 1]["log_end"] > 0
    assert servers["broker-a", 1]["lag"] == 0
    assert by_namesrv[0] == 0
    assert by_namesrv[1]["sets"] == found["sets"]
    assert without_slave[0] == 1
    assert (changed.code, read_only[0]) == (0, 1)
    assert f"`kourou broker set {master} brokerPermission=6`" in str(read_only[1]["sets"])
    assert without_slave[1]["sets"][0]["problem"] == "too few copies: sends are not acknowledged"
