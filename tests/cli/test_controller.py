"""`kourou controller`: start, state, refusals."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.controller.headers import GetReplicaInfoRequestHeader
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.testing.process import Serving, run_command


async def replica_info(address: str) -> RemotingCommand:
    """Return the answer to CONTROLLER_GET_REPLICA_INFO."""
    pool = ConnectionPool(Runtime.system(), {}, ConnectionLimits())
    header = GetReplicaInfoRequestHeader("a")
    try:
        command = request(RequestCode.CONTROLLER_GET_REPLICA_INFO, header)
        return await pool.request(address, command, 5)
    finally:
        await pool.close()


def test_controller_keeps_its_state_in_the_directory_and_warns_that_it_is_alone(
    tmp_path: Path,
) -> None:
    with Serving.start_controller("--file", str(tmp_path / "state")) as serving:
        assert serving.controller.startswith("127.0.0.1:")
        second = run_command("controller", "--file", str(tmp_path / "state"), "--port", "0")
        outcome = serving.stop()

    assert second.code == 3
    assert "locked by another controller" in second.err
    assert outcome.code == 0
    assert "single point of failure" in outcome.err
    assert json.loads((tmp_path / "state" / "controller.json").read_text())["sets"] == []


def test_controller_without_a_place_for_its_state_is_refused() -> None:
    outcome = run_command("controller")
    both = run_command("controller", "--file", "x", "--etcd", "http://127.0.0.1:1")

    assert (outcome.code, both.code) == (2, 2)
    assert "--file" in outcome.err
    assert "one place only" in both.err


def test_controller_without_etcd_serves_and_answers_that_nobody_leads() -> None:
    with Serving.start_controller("--etcd", "http://127.0.0.1:1,http://127.0.0.1:2") as serving:
        answer = asyncio.run(replica_info(serving.controller))
        outcome = serving.stop()

    assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER
    assert outcome.code == 0
    assert "single point" not in outcome.err


def test_damaged_state_and_wildcard_address_are_refused(tmp_path: Path) -> None:
    (tmp_path / "controller.json").write_text('{"leaseMs":1,"sets":[]}')
    damaged = run_command("controller", "--file", str(tmp_path), "--port", "0")
    wildcard = run_command("controller", "--file", str(tmp_path), "--listen", "::")

    assert damaged.code == 3
    assert "controller.json is damaged" in damaged.err
    assert wildcard.code == 2
    assert "--advertise" in wildcard.err
