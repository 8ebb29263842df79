"""Tests of the settings of `kourou serve` from options and file, and of its refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from kourou.broker.rocketmq_keys import REFUSED_KEYS, ROCKETMQ_KEYS
from kourou.cli.machine import memory_bytes
from kourou.cli.process import Plan
from kourou.cli.serve import Profile, ServeConfig, read_plan
from kourou.errors import ConfigError
from kourou.settings import wire_keys


@pytest.mark.parametrize("profile", Profile)
def test_believed_bytes_defaults_to_a_sixteenth_of_the_memory(
    tmp_path: Path, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"store_path": tmp_path}
    assert read_plan(flags, None, profile).broker.store.believed_bytes == memory_bytes() // 16

    monkeypatch.setenv("KOUROU_BROKER_BELIEVED_BYTES", "5")
    assert read_plan(flags, None, profile).broker.store.believed_bytes == 5


def plan_of(directory: Path, text: str, **flags: object) -> Plan:
    """Return the plan of a broker.conf."""
    file = directory / "broker.conf"
    file.write_text(text)
    return read_plan({"store_path": directory / "store"} | flags, file, Profile.DEV)


def refusal(directory: Path, text: str, **flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_of(directory, text, **flags)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("aclEnable", "true"),
        ("authenticationEnabled", "true"),
        ("authorizationEnabled", "TRUE"),
        ("enableDLegerCommitLog", "true"),
        ("duplicationEnable", "true"),
        ("configManagerVersion", "v2"),
        ("storeType", "defaultRocksDB"),
        ("storeType", "default;defaultRocksDB"),
        ("timerRocksDBEnable", "true"),
        ("transRocksDBEnable", "true"),
        ("messageStorePlugIn", "org.apache.rocketmq.tieredstore.TieredMessageStore"),
        ("readOnlyCommitLogStorePaths", "/mnt/old/commitlog"),
        ("fetchNamesrvAddrByAddressServer", "true"),
        ("fetchNameSrvAddrByDnsLookup", "true"),
        ("useTLS", "true"),
    ],
)
def test_option_for_an_unsupported_safety_feature_ends_the_start(
    tmp_path: Path, key: str, value: str
) -> None:
    text = refusal(tmp_path, f"brokerName=a\n{key} = {value}\n")

    assert text.startswith(f"{tmp_path}/broker.conf: {key} = {value}: Kourou ")
    assert len(text.split(": ")) > 3, "it says what to do"


def test_refused_options_are_rocketmq_keys_that_are_not_served() -> None:
    assert REFUSED_KEYS.keys() <= ROCKETMQ_KEYS - set(wire_keys(ServeConfig))


HARMLESS = """
brokerRole=ASYNC_MASTER
aclEnable=false
authenticationEnabled=False
enableControllerMode=false
inSyncReplicas=1
totalReplicas=1
storeType=default
configManagerVersion=v1
messageStorePlugIn=
"""


def test_refused_options_with_default_values_are_accepted(tmp_path: Path) -> None:
    assert plan_of(tmp_path, HARMLESS).broker.broker_name == "broker-a"


def test_refused_option_in_toml_ends_the_start(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("authenticationEnabled = true\n")
    with pytest.raises(ConfigError, match="authenticationEnabled = true: Kourou does not"):
        read_plan({}, file, Profile.DEV)


def test_commit_log_outside_of_the_store_ends_the_start(tmp_path: Path) -> None:
    text = refusal(tmp_path, "storePathCommitLog=/data/commitlog\n")
    assert "/data/commitlog" in text
    assert f"{tmp_path}/store/commitlog" in text

    usual = f"storePathCommitLog={tmp_path}/store/commitlog\n"
    assert plan_of(tmp_path, usual).store_path == tmp_path / "store"


@pytest.mark.parametrize("namesrv", ["127.0.0.1:9876", "10.0.0.1:9876;localhost:9876", "[::1]:1"])
def test_wildcard_broker_with_loopback_name_server_is_refused(tmp_path: Path, namesrv: str) -> None:
    text = refusal(tmp_path, f"bindAddress=0.0.0.0\nnamesrvAddr={namesrv}\n")
    assert "--advertise" in text

    for more in ("brokerIP1=10.0.0.5", "bindAddress=10.0.0.5"):
        settings = f"namesrvAddr={namesrv}\n{more}\n"
        if "bind" not in more:
            settings += "bindAddress=0.0.0.0\n"
        assert plan_of(tmp_path, settings).namesrv is None
    far = "bindAddress=0.0.0.0\nnamesrvAddr=10.0.0.1:9876\n"
    assert plan_of(tmp_path, far).namesrv is None
