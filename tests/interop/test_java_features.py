"""Tests of features of the official Java clients with Kourou and with the Java broker.

The cases are the product of feature, client and broker. Each feature is a program that checks its
own result (`features.py`); the Java broker confirms that it expects RocketMQ's behaviour.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from kourou.testing.process import Serving, run_command
from tests.interop.features import FEATURES, OPTIONS, RELEASES, Feature, Played, play, read_log
from tests.interop.peer import start_java

BROKERS = ("java", "kourou")

TABLE = [
    pytest.param(broker, release, feature, id=f"{broker}-{release}-{feature.name}")
    for broker in BROKERS
    for release in RELEASES
    for feature in FEATURES
    if release in feature.releases
]


@pytest.fixture(scope="module")
def namesrvs(
    jars: str,
    tmp_path_factory: pytest.TempPathFactory,
    selected: dict[tuple[str, str], list[Feature]],
) -> Iterator[dict[str, str]]:
    """Return broker -> name server of a broker with all required options."""
    wanted = {broker for broker, _ in selected}
    home = tmp_path_factory.mktemp("features")
    found = {}
    java = start_java(jars, home / "java", options=OPTIONS) if "java" in wanted else None
    try:
        if java is not None:
            found["java"] = java.namesrv_addr
        if "kourou" not in wanted:
            yield found
            return
        config = home / "broker.conf"
        config.write_text(f"messageDelayLevel=1s 1s 1s 1s 1s 1s\n{OPTIONS}")
        with Serving.start(home / "store", "--config", str(config), "--no-console") as kourou:
            found["kourou"] = kourou.namesrv
            yield found
            assert kourou.stop().code == 0
        assert run_command("store", "check", str(home / "store")).code == 0
    finally:
        if java is not None:
            java.stop()


@pytest.fixture(scope="module")
def selected(request: pytest.FixtureRequest) -> dict[tuple[str, str], list[Feature]]:
    """Return (broker, release) -> the features selected for this run."""
    groups: dict[tuple[str, str], list[Feature]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.path == Path(__file__):
            values: dict[str, Any] = dict(item.callspec.params)
            groups.setdefault((values["broker"], values["release"]), []).append(values["feature"])
    return groups


@pytest.fixture(scope="module")
def played() -> dict[tuple[str, str], dict[str, Played]]:
    """Return the results so far."""
    return {}


@pytest.mark.parametrize(("broker", "release", "feature"), TABLE)
def test_a_feature_of_the_official_client_works(
    broker: str,
    release: str,
    feature: Feature,
    namesrvs: dict[str, str],
    selected: dict[tuple[str, str], list[Feature]],
    played: dict[tuple[str, str], dict[str, Played]],
) -> None:
    group = broker, release
    if group not in played:
        played[group] = play(namesrvs[broker], release, selected[group])

    assert feature.name in played[group], f"no answer; the client printed: {read_log(release)}"
    outcome = played[group][feature.name]
    assert outcome.is_right, outcome.failure
    if broker == "kourou" and "stood_still_ms" in outcome.facts:
        assert cast(int, outcome.facts["stood_still_ms"]) < 10_000, "it waited for a heartbeat"
