"""Every option of pop consumption that Java has is served, or refused by name with a reason."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.live_config import LiveConfig
from kourou.broker.popping.pop_config import PopConfig, find_kv_store
from kourou.broker.rocketmq_keys import REFUSED_KEYS
from kourou.errors import ConfigError, NoPermissionError
from kourou.settings import load, wire_keys
from kourou.testing.disk import SimDisk

_VECTORS = Path(__file__).parents[2] / "golden" / "vectors" / "config_defaults.json"
_POP = re.compile(
    "[pP]op|[rR]evive|append(Ack|Ck)Async|LongAwaitingAck|CKRePut|RetryTopic|ForNotification"
    "|priorityOrder|SeparateRetryQueue"
)
KEYS = sorted(key for key in json.loads(_VECTORS.read_text())["BrokerConfig"] if _POP.search(key))


def load_text(text: str) -> BrokerConfig:
    return load(
        BrokerConfig,
        text=text,
        environ={},
        prefix="",
        flags={},
        unserved=frozenset(REFUSED_KEYS),
        refused=REFUSED_KEYS,
    )


@pytest.mark.parametrize("key", KEYS)
def test_key_of_java_is_served_or_refused_with_its_default_accepted(key: str) -> None:
    served = wire_keys(BrokerConfig).keys()
    assert (key in served) != (key in REFUSED_KEYS)
    default = json.loads(_VECTORS.read_text())["BrokerConfig"][key]
    assert load_text(f"{key}={default}") == BrokerConfig()


def test_keys_are_those_of_javas_pop_services() -> None:
    assert {"popCkMaxBufferSize", "reviveQueueNum", "enableRetryTopicV2"} <= set(KEYS)
    assert len(KEYS) >= 45


def test_options_are_read_by_javas_keys() -> None:
    pop = load_text(
        "reviveQueueNum=4\nenableRetryTopicV2=true\nskipWhenCKRePutReachMaxTimes=true\n"
        "popCkStayBufferTime=8000\npopCkStayBufferTimeOut=2000\npopPollingSize=5\n"
    ).pop
    assert pop == PopConfig(
        revive_queue_num=4,
        enable_retry_topic_v2=True,
        skip_when_ck_re_put_reach_max_times=True,
        pop_ck_stay_buffer_time_ms=8_000,
        pop_ck_stay_buffer_time_out_ms=2_000,
        pop_polling_size=5,
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("popConsumerKVServiceEnable=true", "exportPopRecord"),
        ("popConsumerKVServiceInit=true", "does not read RocksDB"),
        ("popConsumerFSServiceInit=false", "would not be delivered again"),
        ("appendAckAsync=true", "when they are stored"),
        ("appendCkAsync=true", "when they are stored"),
        ("enableSkipLongAwaitingAck=true", "ack without a checkpoint"),
        ("reviveQueueNum=0", "it must be 1 to 1024"),
        ("popFromRetryProbability=101", "it must be 0 to 100"),
        ("popCkMaxBufferSize=-1", "it must be 0 to"),
    ],
)
def test_value_that_cannot_be_obeyed_ends_the_start(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load_text(text)


def test_option_without_an_effect_is_ignored_with_its_own_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        load_text("reviveInterval=500\npopReviveConcurrency=3\npopConsumerKVServiceEnable=false\n")
    lines = [record.getMessage() for record in caplog.records]
    assert "key=reviveInterval" in lines[0]
    assert "when their invisible time ends" in lines[0]
    assert "only with popConsumerKVServiceEnable" in lines[1]
    assert "does not serve it yet" in lines[2]


def test_change_of_a_refused_option_in_a_running_broker_names_the_reason() -> None:
    live = LiveConfig(BrokerConfig(), 0)
    with pytest.raises(NoPermissionError, match="exportPopRecord"):
        live.update({"popConsumerKVServiceEnable": "true"}, 1)
    live.update({"enablePopBufferMerge": "true"}, 1)
    assert live.current.pop.enable_pop_buffer_merge


def test_store_with_pops_in_rocksdb_is_named() -> None:
    disk = SimDisk()
    assert find_kv_store(disk) is None
    disk.make_directory("kvStore")
    assert find_kv_store(disk) is None
    disk.write("kvStore/CURRENT", 0, [b"MANIFEST-000004"])
    warning = find_kv_store(disk)
    assert warning is not None
    assert "/kvStore may hold pops" in warning
