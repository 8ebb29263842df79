"""Connections are reported as the Java broker reported the same clients."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.remoting.dispatch import Handler
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]


def handler(broker: SimulatedBroker, code: int) -> Handler:
    if code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
        return broker.client_handlers.on_get_consumer_list_by_group
    return broker.admin.table()[code]


@pytest.mark.parametrize(
    "name",
    [
        "203_GET_CONSUMER_CONNECTION_LIST_raw-consumer-connection",
        "203_GET_CONSUMER_CONNECTION_LIST_raw-consumer-connection-offline_rc206",
        "204_GET_PRODUCER_CONNECTION_LIST_raw-producer-connection",
        "204_GET_PRODUCER_CONNECTION_LIST_raw-producer-connection-offline_rc1",
        "38_GET_CONSUMER_LIST_BY_GROUP_raw-consumer-list-one",
        "38_GET_CONSUMER_LIST_BY_GROUP_raw-consumer-list-none_rc1",
    ],
)
def test_connections_are_reported_as_by_java(golden: Golden, name: str) -> None:
    heartbeat, _ = golden("34_HEART_BEAT_raw-heartbeat-consumer")
    recorded, expected = golden(name)
    assert expected is not None

    async def test(broker: SimulatedBroker) -> None:
        client = FakePeer(57840, address="127.0.0.1")
        client.ask(broker.client_handlers.on_heartbeat, client.request_of(heartbeat))
        asks = FakePeer()
        answer = asks.ask(handler(broker, recorded.code), asks.request_of(recorded))
        assert answer is not None
        assert (answer.code, answer.remark) == (expected.code, expected.remark)
        assert json.loads(answer.body or b"0") == json.loads(expected.body or b"0")

    run_with_broker(test)
