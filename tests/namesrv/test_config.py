"""Tests of the options: a value out of range is refused with name, value and range."""

from __future__ import annotations

import pytest

from kourou.errors import ConfigError
from kourou.namesrv.config import NamesrvConfig
from kourou.settings import load


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_outside_its_range_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match=f"port is {port}; it must be from 0 to 65535"):
        NamesrvConfig(port=port)


@pytest.mark.parametrize(
    "name", ["scan_interval_ms", "broker_timeout_ms", "brokers_max", "topic_entries_max"]
)
def test_bounds_are_at_least_one(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0; it must be at least 1"):
        NamesrvConfig(**{name: 0})  # type: ignore[arg-type]


def test_options_and_connection_limits_come_from_environment_and_flags() -> None:
    config = load(
        NamesrvConfig,
        environ={"KOUROU_NAMESRV_PORT": "1234", "KOUROU_NAMESRV_CONNECTIONS_MAX": "7"},
        prefix="KOUROU_NAMESRV_",
        flags={"listen": "::1"},
    )

    assert (config.listen, config.port, config.limits.connections_max) == ("::1", 1234, 7)
