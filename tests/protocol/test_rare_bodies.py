"""Bodies of rare requests: consume queues, timers, replicas, static topics, batch acks."""

from __future__ import annotations

import pytest

from kourou.errors import MalformedBodyError
from kourou.model.subscription import SubscriptionData
from kourou.protocol.brokers import (
    ConsumeQueueData,
    QueryConsumeQueueResponse,
    TimerCheckPoint,
    decode_consume_queue,
    decode_timer_check_point,
    encode_consume_queue,
    encode_timer_check_point,
)
from kourou.protocol.controller.headers import (
    BrokerReplicasInfo,
    ElectMasterResponse,
    EpochEntry,
    EpochEntryCache,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
    applicant_address,
    decode_broker_names,
    encode_broker_names,
    register_check_code,
)
from kourou.protocol.data_version import DataVersion
from kourou.protocol.json_records import decode_record, encode_record
from kourou.protocol.popping.headers import BatchAck, BatchAckMessages, encode_batch_acks
from kourou.protocol.routes import BrokerMemberGroup


def test_consume_queue_entries_are_encoded_with_the_filter() -> None:
    answer = QueryConsumeQueueResponse(
        (ConsumeQueueData(1, 2, 3, eval=True),), 5, 4, SubscriptionData("T"), "null"
    )

    assert decode_consume_queue(encode_consume_queue(answer)) == answer
    assert encode_consume_queue(QueryConsumeQueueResponse()) == (
        b'{"maxQueueIndex":0,"minQueueIndex":0,"queueData":[]}'
    )


def test_timer_check_point_has_seven_numbers() -> None:
    check_point = TimerCheckPoint(1, 2, 3, 4, DataVersion(7, 5, 6))
    body = encode_timer_check_point(check_point)

    assert [body[at + 7] for at in range(0, 56, 8)] == [1, 2, 3, 4, 5, 6, 7]
    assert decode_timer_check_point(body) == check_point
    with pytest.raises(MalformedBodyError, match="not 55"):
        decode_timer_check_point(body[1:])


def test_replicas_are_encoded_like_a_controllers() -> None:
    replica = ReplicaIdentity("b", 1, "h:1", True)
    info = BrokerReplicasInfo({"b": ReplicasInfo(1, "h:1", 2, 3, (replica,))})

    assert encode_record(info) == (
        b'{"replicasInfoTable":{"b":{"inSyncReplicas":[{"alive":true,"brokerAddress":"h:1",'
        b'"brokerId":1,"brokerName":"b"}],"masterAddress":"h:1","masterBrokerId":1,'
        b'"masterEpoch":2,"notInSyncReplicas":[],"syncStateSetEpoch":3}}}'
    )
    assert decode_record(BrokerReplicasInfo, encode_record(info)) == info


def test_sync_state_set_and_epochs_decode_to_the_same() -> None:
    in_sync = SyncStateSet((1, 2), 3)
    epochs = EpochEntryCache("c", "b", 1, (EpochEntry(1, 0, 100), EpochEntry(2, 100)), 200)

    assert encode_record(in_sync) == b'{"syncStateSet":[1,2],"syncStateSetEpoch":3}'
    assert decode_record(SyncStateSet, encode_record(in_sync)) == in_sync
    assert decode_record(EpochEntryCache, encode_record(epochs)) == epochs


def test_members_of_an_election_are_encoded_in_standard_json() -> None:
    elected = ElectMasterResponse(BrokerMemberGroup("c", "b", {1: "h:1", 2: "h:2"}), (1,))
    quoted = (
        b'{"brokerMemberGroup":{"brokerAddrs":{"1":"h:1","2":"h:2"},"brokerName":"b","cluster":"c"}'
        b',"syncStateSet":[1]}'
    )

    assert encode_record(elected) == quoted
    assert decode_record(ElectMasterResponse, quoted) == elected
    bare = quoted.replace(b'"1"', b"1").replace(b'"2"', b"2")
    assert decode_record(ElectMasterResponse, bare) == elected


def test_broker_names_are_an_array() -> None:
    assert decode_broker_names(encode_broker_names(["a", "b"])) == ["a", "b"]
    with pytest.raises(MalformedBodyError):
        decode_broker_names(b'["a",7]')


def test_register_check_code_contains_the_address_of_the_applicant() -> None:
    code = register_check_code("10.0.0.1:10911", 1764351000000)

    assert code == "10.0.0.1:10911;1764351000000"
    assert applicant_address(code) == "10.0.0.1:10911"
    assert applicant_address("") == ""


def test_batch_ack_is_decoded_with_short_and_long_names() -> None:
    ack = BatchAck("g", "T", "1", 5, 6, 7, 8, 9, b"\x05")
    body = encode_record(BatchAckMessages("b", (ack,)))
    long = (
        b'{"acks":[{"bitSet":"BQ==","consumerGroup":"g","invisibleTime":9,"popTime":8,'
        b'"queueId":6,"retry":"1","reviveQueueId":7,"startOffset":5,"topic":"T"}]}'
    )

    assert b'{"b":"BQ==","c":"g","it":9,"pt":8,"q":6,"r":"1","rq":7,"so":5,"t":"T"}' in body
    assert decode_record(BatchAckMessages, body) == BatchAckMessages("b", (ack,))
    assert decode_record(BatchAckMessages, long).acks == (ack,)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_fast_encoder_of_acknowledgements_equals_the_general_one(count: int) -> None:
    acks = tuple(
        BatchAck(f'g"{n}', "T\u00e9\n%RETRY%", str(n), n, 2, 3, 2**62, 0, bytes(range(n * 7)))
        for n in range(count)
    )

    assert encode_batch_acks("b\\", acks) == encode_record(BatchAckMessages("b\\", acks))
