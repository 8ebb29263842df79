"""`kourou controller`: start, state, refusals."""

from __future__ import annotations

import json
from pathlib import Path

from kourou.testing.process import Serving, run_command


def test_controller_keeps_its_state_in_the_directory_and_warns_that_it_is_alone(
    tmp_path: Path,
) -> None:
    with Serving.start_controller(tmp_path / "state") as serving:
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

    assert outcome.code == 2
    assert "--file" in outcome.err


def test_damaged_state_and_wildcard_address_are_refused(tmp_path: Path) -> None:
    (tmp_path / "controller.json").write_text('{"leaseMs":1,"sets":[]}')
    damaged = run_command("controller", "--file", str(tmp_path), "--port", "0")
    wildcard = run_command("controller", "--file", str(tmp_path), "--listen", "::")

    assert damaged.code == 3
    assert "controller.json is damaged" in damaged.err
    assert wildcard.code == 2
    assert "--advertise" in wildcard.err
