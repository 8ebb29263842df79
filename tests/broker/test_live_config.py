"""The options of a running broker, and the requests that read and change them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kourou.broker.administration.config_handlers import ConfigHandlers
from kourou.broker.config import BrokerConfig
from kourou.broker.live_config import LiveConfig
from kourou.broker.rocketmq_keys import ROCKETMQ_KEYS
from kourou.errors import NoPermissionError, RemoteSystemError
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.data_version import DataVersion, decode_data_version
from kourou.protocol.properties_text import decode_properties_text
from kourou.testing.clock import ManualClock
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config


def live(**options: Any) -> LiveConfig:
    return LiveConfig(BrokerConfig(**options), 1_000)


def ask(config: LiveConfig, code: int, body: bytes = b"") -> RemotingCommand:
    peer = FakePeer()
    handlers = ConfigHandlers(config, "/data/store", ManualClock(5_000))
    handler = (
        handlers.on_update_broker_config
        if code == RequestCode.UPDATE_BROKER_CONFIG
        else handlers.on_get_broker_config
    )
    answer = peer.ask(handler, peer.request(code, body=body))
    assert answer is not None
    return answer


def test_a_live_option_changes_at_once_and_listeners_are_called() -> None:
    config = live()
    received: list[BrokerConfig] = []
    config.on_changed.append(received.append)
    config.update({"longPollingEnable": "false", "maxTransferCountOnMessageInMemory": "8"}, 2_000)
    assert not config.current.long_polling_enable
    assert config.current.pull_messages_max == 8
    assert received == [config.current]
    assert config.version == DataVersion(counter=1, timestamp=2_000)


def test_other_options_keep_their_values_through_a_change() -> None:
    config = live(broker_name="b-7", namesrv_addr=("a:1", "b:2"), advertise="10.0.0.5:1")
    before = config.values()
    config.update({"brokerPermission": "4"}, 2_000)
    assert config.values() == before | {"brokerPermission": "4"}


def test_setting_the_current_value_changes_nothing() -> None:
    config = live()
    config.update({"longPollingEnable": "true", "listenPort": "10911"}, 2_000)
    config.update({}, 3_000)
    assert config.version == DataVersion(timestamp=1_000)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"brokerConfigPath": "x"}, "Can not update config in black list."),
        ({"listenPort": "1"}, "listenPort can be changed only by a restart"),
        ({"cleanFileForciblyEnable": "true"}, "Kourou does not serve it yet"),
    ],
)
def test_an_option_that_is_not_live_is_refused(asked: dict[str, str], text: str) -> None:
    config = live()
    with pytest.raises(NoPermissionError, match=text):
        config.update(asked | {"longPollingEnable": "false"}, 2_000)
    assert config.current.long_polling_enable


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"longPolingEnable": "false"}, "did you mean longPollingEnable"),
        ({"longPollingEnable": "yes"}, "true or false"),
        ({"brokerPermission": "1"}, "must be 2"),
        ({"maxMessageSize": "2000000000"}, "commitlog_segment_bytes"),
        ({"shortPollingTimeMills": "0"}, "at least 1"),
    ],
)
def test_an_invalid_key_or_value_is_refused_and_nothing_changes(
    asked: dict[str, str], text: str
) -> None:
    config = live()
    with pytest.raises(RemoteSystemError, match=text):
        config.update(asked | {"autoCreateTopicEnable": "false"}, 2_000)
    assert config.current == BrokerConfig()


def test_live_options_that_rocketmq_lacks_are_listed() -> None:
    assert LiveConfig.live_keys - ROCKETMQ_KEYS == {
        "batchMessagesMax",
        "clockSettleMinutes",
        "skipDamagedRecords",
        "verifyCompressedBodies",
    }


def test_passwords_are_not_reported() -> None:
    assert not [key for key in live().values() if "password" in key.lower()]


@pytest.mark.parametrize(
    "name",
    [
        "25_UPDATE_BROKER_CONFIG_admin-updateBrokerConfig",
        "25_UPDATE_BROKER_CONFIG_raw-broker-config-update",
        "25_UPDATE_BROKER_CONFIG_raw-broker-config-update-empty",
        "25_UPDATE_BROKER_CONFIG_admin-updateBrokerConfig-bad-key_rc16",
        "25_UPDATE_BROKER_CONFIG_raw-broker-config-update-blacklist_rc16",
    ],
)
def test_recorded_updates_get_javas_answer(name: str, golden: Callable[[str], Any]) -> None:
    request, recorded = golden(name)
    answer = ask(live(), RequestCode.UPDATE_BROKER_CONFIG, request.body)
    assert (answer.code, answer.remark) == (recorded.code, recorded.remark)


def test_an_update_is_visible_in_the_next_get() -> None:
    config = live()
    body = b"longPollingEnable=false\nmaxMessageSize=65536\n"
    assert ask(config, RequestCode.UPDATE_BROKER_CONFIG, body).code == ResponseCode.SUCCESS
    answer = ask(config, RequestCode.GET_BROKER_CONFIG)
    values = decode_properties_text(answer.body)
    assert (values["longPollingEnable"], values["maxMessageSize"]) == ("false", "65536")
    version = decode_data_version(answer.ext_fields["version"].encode())
    assert (version.counter, version.timestamp) == (1, 5_000)


def test_a_config_is_reported_in_rocketmqs_keys(golden: Callable[[str], Any]) -> None:
    _, recorded = golden("26_GET_BROKER_CONFIG_raw-broker-config")
    java = decode_properties_text(recorded.body)
    ours = decode_properties_text(ask(live(), RequestCode.GET_BROKER_CONFIG).body)
    assert ours["storePathRootDir"] == "/data/store"
    assert ours["brokerIP1"] == "10.0.0.1"
    same = {key for key in ours if java.get(key) == ours[key]}
    # Keys that both have with different values: our defaults, or facts of the recorded machine.
    assert {key for key in ours if key in java} - same == {
        "allAckInSyncStateSet",
        "brokerIP1",
        "checkSyncStateSetPeriod",
        "controllerHeartBeatTimeoutMills",
        "syncBrokerMetadataPeriod",
        "enableLmq",
        "enableMultiDispatch",
        "enablePropertyFilter",
        "enabledAppendPropCRC",
        "flushConsumeQueueThoroughInterval",
        "flushDiskType",
        "haListenPort",
        "haMaxTimeSlaveNotCatchup",
        "listenPort",
        "mappedFileSizeCommitLog",
        "maxHashSlotNum",
        "maxIndexNum",
        "namesrvAddr",
        "storePathCommitLog",
        "storePathRootDir",
        "timerMaxDelaySec",
        "traceTopicEnable",
        "transactionCheckInterval",  # shorter in the recording, as the next two
        "transactionMetricFlushInterval",
        "transactionTimeOut",
        "warmMapedFileEnable",
    }


def test_a_port_chosen_by_the_system_is_reported() -> None:
    answer = ask(live(port=0), RequestCode.GET_BROKER_CONFIG)
    assert decode_properties_text(answer.body)["listenPort"] == "10911"


def test_a_broker_that_becomes_unreadable_refuses_pulls_at_once() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft()])
        codes = []
        for permission in ("6", "2"):
            broker.live_config.update({"brokerPermission": permission}, 1)
            answer = broker.pull(FakePeer())
            codes.append(answer.code if answer is not None else None)
        assert codes == [ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION]

    run_with_broker(test, config=small_config())
