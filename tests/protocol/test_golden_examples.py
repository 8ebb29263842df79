"""Details of some recorded exchanges: routes, sends, pulls, heartbeats."""

from __future__ import annotations

from kourou.model.group import ConsumeFromWhere, ConsumeType
from kourou.model.sysflag import COMPRESSED
from kourou.protocol.clients import decode_heartbeat
from kourou.protocol.command import RemotingCommand
from kourou.protocol.compression import DECOMPRESSED_SIZE_MAX, decompress
from kourou.protocol.pulling import PullMessageRequestHeader, PullMessageResponseHeader
from kourou.protocol.record.decode import decode_messages
from kourou.protocol.routes import decode_topic_route, encode_topic_route
from kourou.protocol.sending import SendMessageRequestHeaderV2, SendMessageResponseHeader
from kourou.protocol.topic_table import decode_register_body
from tests.golden_exchanges import exchanges


def side_of(name: str, *, request: bool) -> RemotingCommand:
    exchange = exchanges()[name]
    side = exchange.request if request else exchange.response
    assert side is not None
    return side.command


def test_route_has_the_form_of_the_requesting_version() -> None:
    old = side_of("105_GET_ROUTEINFO_BY_TOPIC_raw-route-old-client-version", request=True)
    body = side_of("105_GET_ROUTEINFO_BY_TOPIC_raw-route-old-client-version", request=False).body
    route = decode_topic_route(body)

    assert old.version < 401
    assert encode_topic_route(route, standard=False) == body
    assert b"{0:" in body


def test_registration_contains_the_topics_of_the_broker() -> None:
    body = decode_register_body(side_of("103_REGISTER_BROKER_broker-start", request=True).body)

    assert body.table.topics["TBW102"].perm == 7
    assert body.table.topics["BenchmarkTest"].write_queue_nums == 1024
    assert body.table.data_version.timestamp == 1795229133429


def test_recorded_send_and_response_are_decoded() -> None:
    header = side_of("310_SEND_MESSAGE_V2_send-sync", request=True).header(
        SendMessageRequestHeaderV2
    )
    answer = side_of("310_SEND_MESSAGE_V2_send-sync", request=False).header(
        SendMessageResponseHeader
    )

    assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 4)
    assert header.properties is not None
    assert "UNIQ_KEY\x01" in header.properties
    assert answer.queue_id == header.queue_id
    assert len(answer.msg_id) == 32
    assert (answer.region, answer.trace_on) == ("DefaultRegion", "true")


def test_recorded_compressed_body_is_decompressed() -> None:
    command = side_of("310_SEND_MESSAGE_V2_send-compressed-zlib", request=True)
    header = command.header(SendMessageRequestHeaderV2)

    assert header.sys_flag & COMPRESSED
    body = decompress(command.body, header.sys_flag, size_max=DECOMPRESSED_SIZE_MAX)
    assert len(body) >= 4096


def test_recorded_pull_and_its_messages_are_decoded() -> None:
    command = side_of("11_PULL_MESSAGE_pull-found", request=False)
    header = side_of("11_PULL_MESSAGE_pull-found", request=True).header(PullMessageRequestHeader)
    answer = command.header(PullMessageResponseHeader)
    messages = decode_messages(command.body)

    assert [m.queue_offset for m in messages] == list(
        range(header.queue_offset, answer.next_begin_offset)
    )
    assert {m.topic for m in messages} == {header.topic}
    assert {m.queue_id for m in messages} == {header.queue_id}
    assert all(m.msg_id == m.properties["UNIQ_KEY"] for m in messages)
    assert all(m.physical_offset < m.physical_offset + m.store_size for m in messages)


def test_inner_batch_is_split() -> None:
    messages = decode_messages(side_of("11_PULL_MESSAGE_pull-inner-batch", request=False).body)

    assert len(messages) > 1
    first = messages[0]
    assert [m.queue_offset for m in messages] == [
        first.queue_offset + index for index in range(len(messages))
    ]
    assert len({m.physical_offset for m in messages}) == 1
    assert len({m.body for m in messages}) == len(messages)
    assert len({m.msg_id for m in messages}) == len(messages)


def test_all_recorded_messages_are_decoded_without_decompression() -> None:
    body = side_of("11_PULL_MESSAGE_pull-every-kind-of-record", request=False).body
    messages = decode_messages(body, decompress=False)

    assert sum(m.store_size for m in messages) == len(body)
    assert any(m.sys_flag & COMPRESSED for m in messages)


def test_recorded_heartbeat_of_a_push_consumer_is_decoded() -> None:
    heartbeat = decode_heartbeat(side_of("34_HEART_BEAT_push-concurrently", request=True).body)
    (consumer,) = heartbeat.consumers

    assert consumer.consume_type is ConsumeType.PASSIVELY
    assert consumer.consume_from_where is ConsumeFromWhere.FIRST_OFFSET
    by_topic = {one.topic: one for one in consumer.subscriptions}
    assert by_topic["GoldenPull"].tags_set == {"TagA", "TagB"}
    assert by_topic["%RETRY%golden_push"].sub_string == "*"
