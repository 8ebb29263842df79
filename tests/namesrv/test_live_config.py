"""Tests of option changes at run time."""

from __future__ import annotations

import pytest

from kourou.errors import NoPermissionError, RemoteSystemError
from kourou.namesrv.config import LiveConfig, NamesrvConfig


def test_options_are_listed_under_rocketmq_keys() -> None:
    values = LiveConfig(NamesrvConfig(port=19_876)).values()

    assert values["listenPort"] == "19876"
    assert values["scanNotActiveBrokerInterval"] == "5000"
    assert values["orderMessageEnable"] == "false"
    assert values["waitSecondsForService"] == "45"
    assert values["tls.server.mode"] == "permissive"
    assert values["tls.server.certPath"] == ""
    assert values["proxyProtocolTrusted"] == ""


def test_live_options_change_together() -> None:
    live = LiveConfig(NamesrvConfig())

    live.change({"orderMessageEnable": "true", "scanNotActiveBrokerInterval": "1000"})

    assert live.current == NamesrvConfig(order_message_enable=True, scan_interval_ms=1000)


def test_unchanged_values_sent_back_by_admin_tools_are_accepted() -> None:
    live = LiveConfig(NamesrvConfig())

    live.change(live.values() | {"enableTopicList": "false"})

    assert live.current == NamesrvConfig(enable_topic_list=False)


@pytest.mark.parametrize(
    ("key", "remark"),
    [
        ("kvConfigPath", "Can not update config in black list."),
        ("configStorePath", "Can not update config in black list."),
        ("listenPort", "listenPort cannot be changed while the name server runs; .*enableAllTopic"),
        ("nonsense", "nonsense cannot be changed"),
    ],
)
def test_other_options_are_refused_and_nothing_changes(key: str, remark: str) -> None:
    live = LiveConfig(NamesrvConfig())

    with pytest.raises(NoPermissionError, match=remark):
        live.change({"enableTopicList": "false", key: "1"})

    assert live.current == NamesrvConfig()


@pytest.mark.parametrize(
    ("key", "value"), [("orderMessageEnable", "maybe"), ("scanNotActiveBrokerInterval", "0")]
)
def test_a_bad_value_is_refused(key: str, value: str) -> None:
    live = LiveConfig(NamesrvConfig())

    with pytest.raises(RemoteSystemError):
        live.change({key: value})

    assert live.current == NamesrvConfig()
