"""The broker's options refuse invalid values with the name of the option."""

from __future__ import annotations

from dataclasses import fields

import pytest

from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.broker.live_config import LiveConfig
from kourou.broker.rocketmq_keys import ROCKETMQ_KEYS
from kourou.broker.topics import system_topics
from kourou.errors import ConfigError, RemoteSystemError
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.transport_config import TransportConfig
from kourou.settings import load, values_of, wire_keys
from kourou.store.config import StoreConfig
from kourou.store.retention import RetentionConfig

PARTS = (StoreConfig, ConnectionLimits, TransportConfig)
"""The nested configs of the broker's config."""

OURS = {
    "batchMessagesMax",
    "clientSharePercent",
    "unusedGroupMs",
    "pendingBytesMax",
    "pendingConnectionBytesMax",
    "pendingRequestsMax",
    "heldPullsMax",
    "clientsMax",
    "skipDamagedRecords",
    "verifyCompressedBodies",
    "timerInFlightMax",
    "advertise",
    "vipPortEnable",
    "haAheadBytes",
    "haAllowedAddresses",
    "haSlavesMax",
    "memoryBytes",
    "controllerHeartbeatIntervalMs",
    "controllerLeaseMs",
    "controllerFailsafe",
}
"""Keys that RocketMQ does not have."""


def test_the_defaults_are_durable_and_local() -> None:
    config = BrokerConfig()

    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert config.listen == "127.0.0.1"
    assert config.port == 10911


def test_every_option_has_rocketmqs_key_or_is_listed_as_our_own() -> None:
    inner = map(wire_keys, PARTS)

    assert set(wire_keys(BrokerConfig)) - ROCKETMQ_KEYS - set().union(*inner) <= OURS


def test_no_two_nested_configs_share_an_option_name() -> None:
    own = {field.name for field in fields(BrokerConfig)} - {"store", "limits", "transport"}
    names = [name for part in PARTS for name in values_of(part())]

    assert len({*own, *names}) == len(own) + len(names)


def test_limits_and_tls_are_set_in_the_same_flat_file() -> None:
    config = load(
        BrokerConfig,
        text="serverChannelMaxIdleTimeSeconds=60\nconnectionsMax=500\ntls.enable=true\n",
        environ={"KOUROU_BROKER_FRAME_TIMEOUT_MS": "5000"},
        prefix="KOUROU_BROKER_",
        flags={"drain_timeout_ms": 200},
    )

    assert config.limits == ConnectionLimits(
        idle_timeout_ms=60_000,
        connections_max=500,
        frame_timeout_ms=5_000,
        drain_timeout_ms=200,
    )
    assert config.transport.tls_client() is not None


def test_a_broker_conf_of_rocketmq_fills_the_config_and_its_store() -> None:
    config = load(
        BrokerConfig,
        text="brokerClusterName=c1\nbrokerName=b1\nflushDiskType=ASYNC_FLUSH\n"
        "namesrvAddr=10.0.0.1:9876;10.0.0.2:9876\nmappedFileSizeCommitLog=33554432\n",
        environ={"KOUROU_BROKER_PORT": "20911"},
        prefix="KOUROU_BROKER_",
        flags={"advertise": "10.0.0.9"},
    )

    assert (config.cluster_name, config.broker_name) == ("c1", "b1")
    assert config.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert config.namesrv_addr == ("10.0.0.1:9876", "10.0.0.2:9876")
    assert (config.port, config.advertise) == (20911, "10.0.0.9")
    assert config.store.commitlog_segment_bytes == 32 * 1024 * 1024


def test_the_store_gets_the_delay_levels_of_the_broker() -> None:
    config = BrokerConfig(message_delay_level="2s 1m")

    assert config.store_config.delay_levels_ms == (2_000, 60_000)


def test_the_name_of_a_broker_may_begin_with_its_machine_room() -> None:
    config = BrokerConfig(broker_name=f"room-1@{'b' * 120}")

    assert config.broker_name in [topic.name for topic in system_topics(config)]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"port": 70_000}, "port"),
        ({"port": -1}, "port"),
        ({"broker_id": 1}, "it must be 0, a master"),
        ({"broker_name": "not a name"}, "broker_name"),
        ({"broker_name": "room-1@"}, "broker_name"),
        ({"broker_name": "@broker-a"}, "broker_name"),
        ({"broker_name": "a@b@c"}, "broker_name"),
        ({"broker_name": f"room-1@{'b' * 121}"}, "broker_name"),
        ({"cluster_name": "room-1@cluster"}, "cluster_name"),
        ({"cluster_name": ""}, "cluster_name"),
        ({"register_interval_ms": 5}, "register_interval_ms"),
        ({"broker_permission": 1}, "broker_permission"),
        ({"message_delay_level": "1x"}, "messageDelayLevel"),
        ({"flush_interval_ms": 0}, "flush_interval_ms"),
        ({"sync_flush_timeout_ms": 0}, "sync_flush_timeout_ms"),
        ({"max_message_size_bytes": 40 * 1024 * 1024}, "commitlog_segment_bytes"),
        ({"pending_connection_bytes_max": 1024}, "pending_connection_bytes_max"),
        ({"pending_bytes_max": 1024}, "pending_bytes_max"),
        ({"namesrv_addr": ("10.0.0.1:9876", "bad")}, "namesrv_addr: address 'bad' names no port"),
        ({"advertise": "host:port"}, "advertise: address"),
        ({"advertise": "0.0.0.0"}, r"advertise: 0\.0\.0\.0 is a wildcard address"),  # noqa: S104  # refused
        ({"advertise": "[::]:10911"}, "advertise: :: is a wildcard address"),
        ({"advertise": "10.0.0.9:0"}, "advertise: clients cannot connect to port 0"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        BrokerConfig(**options)  # type: ignore[arg-type]  # wrong on purpose


def retention(hours: int) -> StoreConfig:
    """Return the config of a store with this retention time."""
    return StoreConfig(retention=RetentionConfig(file_reserved_hours=hours))


@pytest.mark.parametrize("hours", [1, 2, 71])
def test_delay_levels_longer_than_the_retention_are_refused(hours: int) -> None:
    for level in (f"{hours}h", f"{hours * 60 + 1}m", f"{hours * 3600 + 1}s"):
        text = rf"level 2 is .* after {hours} h .* fileReservedTime to {hours + 1}"
        with pytest.raises(ConfigError, match=text):
            BrokerConfig(message_delay_level=f"1s {level}", store=retention(hours))
    BrokerConfig(message_delay_level=f"{hours * 3600 - 1}s", store=retention(hours))


def test_the_retention_cannot_be_set_below_the_longest_delay_level() -> None:
    live = LiveConfig(BrokerConfig(), 1)
    live.update({"fileReservedTime": "3"}, 2)
    for hours in (2, 0):
        text = f"level 18 is 7200 s, but messages expire after {hours}"
        with pytest.raises(RemoteSystemError, match=text):
            live.update({"fileReservedTime": str(hours)}, 3)
    assert live.current.store.retention.file_reserved_hours == 3
