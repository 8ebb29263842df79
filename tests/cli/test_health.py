"""Tests of `kourou health` and the console of `kourou serve`, with a real process."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kourou.cli.health import BrokerHealth, NamesrvHealth, health_exit_code, judge_sets
from kourou.testing.process import Outcome, Serving

pytestmark = pytest.mark.slow
Kourou = Callable[..., Outcome]
WELL = BrokerHealth("b", 0, "h:1", "V5_5_0", 0.5)
ILL = BrokerHealth("b", 0, "h:1", problem="gone")


def test_running_cluster_is_healthy(kourou: Kourou, serving: Serving) -> None:
    reported = kourou("health")
    as_json = kourou("health", "--json")
    assert (reported.code, reported.err, as_json.code) == (0, "", 0)
    assert reported.out.count("  ok\n") == 2
    document = json.loads(as_json.out)
    assert document["healthy"] is True
    assert document["name_servers"] == [{"address": serving.namesrv, "brokers": 1, "problem": ""}]
    (broker,) = document["brokers"]
    assert (broker["name"], broker["address"], broker["problem"]) == (
        "broker-a",
        serving.broker,
        "",
    )


def test_without_any_name_server_the_exit_code_is_3(command: Callable[..., Outcome]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        outcome = command("health", "-n", f"127.0.0.1:{unused.getsockname()[1]}", "--json")
    document = json.loads(outcome.out)
    assert (outcome.code, document["healthy"], document["brokers"]) == (3, False, [])
    assert document["name_servers"][0]["problem"]


def test_one_of_two_name_servers_down_is_a_problem(
    command: Callable[..., Outcome], serving: Serving
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        both = f"{serving.namesrv};127.0.0.1:{unused.getsockname()[1]}"
        outcome = command("health", "-n", both)
    assert outcome.code == 1
    assert "broker-a" in outcome.out


@pytest.mark.parametrize(
    ("servers", "brokers", "code"),
    [
        ([NamesrvHealth("a", 1)], [WELL], 0),
        ([NamesrvHealth("a", 1)], [WELL, ILL], 1),
        ([NamesrvHealth("a", 1), NamesrvHealth("b", 0, "refused")], [WELL], 1),
        ([NamesrvHealth("a", 0, "has no broker")], [], 1),
        ([NamesrvHealth("a", 0, "refused"), NamesrvHealth("b", 0, "refused")], [], 3),
    ],
)
def test_exit_code_distinguishes_problems(
    servers: list[NamesrvHealth], brokers: list[BrokerHealth], code: int
) -> None:
    assert health_exit_code(servers, brokers) == code


def test_serve_answers_http_of_monitoring(serving: Serving) -> None:
    url = str(serving.ready["console"])
    for path in ("/healthz", "/readyz", "/metrics"):
        with urllib.request.urlopen(url + path, timeout=60) as answer:  # noqa: S310 - http
            assert answer.status == 200
            assert answer.read()


def test_serve_without_console_reports_no_address(tmp_path: Path) -> None:
    with Serving.start(tmp_path / "store", "--no-console") as serving:
        assert serving.ready["console"] is None


def test_taken_console_port_ends_the_start_if_it_was_configured(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(AssertionError, match=rf"exit code 3 .*127.0.0.1:{port}"):
            Serving.start(tmp_path / "store", "--console-port", port)


def test_slaves_whose_master_is_not_registered_have_a_problem() -> None:
    slave, lone = BrokerHealth("b", 1, "h:2"), BrokerHealth("c", 2, "h:3")

    judged = judge_sets([WELL, slave, lone, replace(lone, id=3, problem="gone")])

    assert [one.problem for one in judged[:2]] == ["", ""]
    assert judged[2].problem.startswith("no master")
    assert judged[3].problem == "gone"
