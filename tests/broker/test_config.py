"""The broker's options refuse what cannot work, and say which option it is."""

from __future__ import annotations

import pytest

from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.broker.known_keys import ROCKETMQ_KEYS
from kourou.errors import ConfigError
from kourou.settings import load, wire_keys
from kourou.store.config import StoreConfig

OURS = {
    "pendingBytesMax",
    "pendingConnectionBytesMax",
    "pendingRequestsMax",
    "heldPullsMax",
    "clientsMax",
    "advertise",
}
"""Keys of limits that RocketMQ has not."""


def test_the_defaults_are_durable_and_local() -> None:
    config = BrokerConfig()

    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert config.listen == "127.0.0.1"
    assert config.port == 10911


def test_every_option_has_rocketmqs_key_or_is_a_limit_of_ours() -> None:
    store_fields = set(wire_keys(StoreConfig))

    assert set(wire_keys(BrokerConfig)) - ROCKETMQ_KEYS - store_fields <= OURS


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


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"port": 70_000}, "port"),
        ({"port": -1}, "port"),
        ({"broker_id": 1}, "replication is not built yet"),
        ({"broker_name": "not a name"}, "broker_name"),
        ({"cluster_name": ""}, "cluster_name"),
        ({"register_interval_ms": 5}, "register_interval_ms"),
        ({"broker_permission": 1}, "broker_permission"),
        ({"message_delay_level": "1x"}, "messageDelayLevel"),
        ({"flush_interval_ms": 0}, "flush_interval_ms"),
        ({"sync_flush_timeout_ms": 0}, "sync_flush_timeout_ms"),
        ({"max_message_size_bytes": 40 * 1024 * 1024}, "commitlog_segment_bytes"),
        ({"pending_connection_bytes_max": 1024}, "pending_connection_bytes_max"),
        ({"pending_bytes_max": 1024}, "pending_bytes_max"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        BrokerConfig(**options)  # type: ignore[arg-type]  # wrong on purpose
