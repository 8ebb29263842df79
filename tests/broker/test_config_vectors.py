"""The broker's options against those that Java parses from the same text, and its defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.rocketmq_keys import ROCKETMQ_KEYS
from kourou.errors import ConfigError
from kourou.properties_file import parse_properties
from kourou.settings import load, setting_text, values_of, wire_keys

_FOLDER = Path(__file__).parent.parent / "golden" / "vectors"
CASES = json.loads((_FOLDER / "broker_conf.json").read_text())["cases"]
DEFAULTS = json.loads((_FOLDER / "config_defaults.json").read_text())

DEFAULT_PORT = 6888
"""Of the recorded class, before the start-up code sets 10911."""

OTHER_DEFAULTS = {
    "allAckInSyncStateSet": "any member of the in-sync set can be elected",
    "bindAddress": "Java listens on all addresses; here that is a choice",
    "brokerIP1": "the machine's; None takes the address listened on",
    "brokerName": "the machine's",
    "brokerRole": "a broker without one is a master too, and opens no port for slaves",
    "checkSyncStateSetPeriod": "a dead slave delays sends for less than 3 s",
    "controllerHeartBeatTimeoutMills": "a lost master is replaced within seconds",
    "enabledAppendPropCRC": "each record is covered by a checksum",
    "flushConsumeQueueThoroughInterval": "a recovery scans what came since",
    "flushDiskType": "an acknowledged message is on disk",
    "haListenPort": "a single broker opens no port for slaves; 0 takes Java's",
    "haMaxTimeSlaveNotCatchup": "a dead slave delays sends for less than 3 s",
    "listenPort": "Java's start-up sets 10911 too",
    "mappedFileSizeCommitLog": "the dev profile; prod has Java's 1 GiB",
    "maxHashSlotNum": "the dev profile; prod has Java's 5,000,000",
    "maxIndexNum": "the dev profile; prod has Java's 20,000,000",
    "syncBrokerMetadataPeriod": "a new master is known within a second",
    "recallMessageEnable": "every send of a scheduled message answers with a recall handle",
    "timerMaxDelaySec": "a delay of any length is taken, and rolls",
    "warmMapedFileEnable": "zeros go ahead of the log, not into whole files",
}
"""Options whose default is not that of Java's classes, and why."""


def served_defaults() -> dict[str, str]:
    values = values_of(BrokerConfig())
    return {key: setting_text(values[name]) for key, name in wire_keys(BrokerConfig).items()}


def java_defaults() -> dict[str, str]:
    """Return the defaults of the classes that broker.conf fills; the first class wins."""
    merged: dict[str, str] = {}
    for name in ("BrokerConfig", "MessageStoreConfig", "NettyServerConfig", "NettyClientConfig"):
        merged = DEFAULTS[name] | merged
    return merged | {"bindAddress": DEFAULTS["NettyServerConfig"]["bindAddress"]}


def test_defaults_equal_javas_except_the_listed_ones() -> None:
    ours, java = served_defaults(), java_defaults()
    other = {key for key in ours if key in java and ours[key] != (java[key] or "")}
    assert other == OTHER_DEFAULTS.keys() & other
    assert OTHER_DEFAULTS.keys() <= ours.keys()


@pytest.mark.parametrize(
    "name",
    ["BrokerConfig", "MessageStoreConfig", "NettyServerConfig", "NettyClientConfig", "AuthConfig"],
)
def test_every_key_of_java_is_known(name: str) -> None:
    assert DEFAULTS[name].keys() <= ROCKETMQ_KEYS


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["read_as"] == "reader_utf8"], ids=lambda c: c["text"]
)
def test_properties_read_as_in_java(case: dict[str, Any]) -> None:
    # Blanks at the end of a value are dropped, on purpose: Java keeps them, and then cannot read
    # the value as a number.
    java = {key: value.rstrip(" \t\f") for key, value in case["result"]["properties"].items()}
    assert parse_properties(case["text"], "broker.conf") == java


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["read_as"] == "reader_utf8" and "listenPort" in case["text"]],
    ids=lambda c: c["text"],
)
def test_a_number_that_java_ignores_silently_is_refused(case: dict[str, Any]) -> None:
    port_text = case["result"]["properties"]["listenPort"].strip()
    if port_text.isdigit() and int(port_text) <= 65535:
        config = load(BrokerConfig, environ={}, prefix="", flags={}, text=f"listenPort={port_text}")
        assert config.port == int(port_text)
    else:
        assert case["result"]["listenPort"] == DEFAULT_PORT  # Java keeps its default
        with pytest.raises(ConfigError, match=r"listenPort|port is"):
            load(BrokerConfig, environ={}, prefix="", flags={}, text=f"listenPort={port_text}")
