"""The broker answers each request in the serialization of the request, on all paths."""

from __future__ import annotations

import pytest

from kourou.model.message import Message
from kourou.model.sysflag import PULL_SUBSCRIPTION
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, SerializeType, request
from kourou.protocol.frame import encode_frame
from kourou.protocol.pulling import PullMessageRequestHeader
from kourou.protocol.record.decode import decode_messages
from kourou.protocol.sending import SendMessageRequestHeaderV2
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.raw_client import RawClient

SEND = request(
    RequestCode.SEND_MESSAGE_V2,
    SendMessageRequestHeaderV2("producers", "T", "TBW102", 4, 0, 0, 0, 0, "", 0),
    b"binary",
)
PULL = request(
    RequestCode.PULL_MESSAGE,
    PullMessageRequestHeader("g", "T", 0, 0, 32, PULL_SUBSCRIPTION, 0, 0, 0, "*"),
)
UNKNOWN = request(3442)  # what becomes of POP_MESSAGE in the 16 bits of Java's binary header


@pytest.mark.parametrize("serialize_type", SerializeType)
def test_answers_take_the_serialization_of_their_requests(serialize_type: SerializeType) -> None:
    async def test() -> list[RemotingCommand]:
        async with Cluster() as cluster:
            async with cluster.producer() as producer:
                await producer.send(Message("T", b"makes the topic"))
            client = await RawClient.connect(cluster.network, cluster.broker_address())
            answers = []
            for opaque, command in enumerate((SEND, PULL, UNKNOWN)):
                command.opaque = opaque
                command.serialize_type = serialize_type
                client.write(encode_frame(command))
                answers.append((await client.take(opaque + 1))[opaque])
            client.close()
            return answers

    sent, pulled, unknown = run_virtual(test())
    assert [answer.opaque for answer in (sent, pulled, unknown)] == [0, 1, 2]
    assert {answer.serialize_type for answer in (sent, pulled, unknown)} == {serialize_type}
    assert (sent.code, sent.ext_fields["queueId"]) == (0, "0")
    assert (pulled.code, pulled.remark) == (0, "FOUND")
    assert b"binary" in [message.body for message in decode_messages(pulled.body)]
    assert (unknown.code, unknown.remark) == (3, " request type 3442 not supported")
