"""Bodies about connected clients are encoded and decoded as in Java."""

from __future__ import annotations

import pytest

from kourou.errors import MalformedBodyError
from kourou.model.group import ConsumeFromWhere, ConsumeType, MessageModel
from kourou.model.subscription import SubscriptionData
from kourou.protocol.codes import LanguageCode
from kourou.protocol.connections import (
    Connection,
    ConsumerConnection,
    GroupSubscription,
    ProducerInfo,
    decode_consumer_connection,
    decode_group_list,
    decode_group_subscription,
    decode_producer_connection,
    decode_producer_table,
    encode_consumer_connection,
    encode_group_list,
    encode_group_subscription,
    encode_producer_connection,
    encode_producer_table,
)

CLIENT = Connection("c@1", "10.0.0.1:5000", LanguageCode.PYTHON, 513)
CLIENT_JSON = (
    b'{"connectionSet":[{"clientAddr":"10.0.0.1:5000","clientId":"c@1",'
    b'"language":"PYTHON","version":513}]'
)


def test_consumer_connection_contains_subscriptions() -> None:
    connection = ConsumerConnection(
        [CLIENT],
        ConsumeType.POP,
        MessageModel.BROADCASTING,
        ConsumeFromWhere.TIMESTAMP,
        {"T": SubscriptionData("T")},
    )
    body = encode_consumer_connection(connection)

    assert body.startswith(CLIENT_JSON + b',"consumeFromWhere":"CONSUME_FROM_TIMESTAMP"')
    assert decode_consumer_connection(body) == connection


def test_producer_connection_lists_the_producers_of_a_group() -> None:
    body = encode_producer_connection([CLIENT])

    assert body == CLIENT_JSON + b"}"
    assert decode_producer_connection(body) == [CLIENT]


def test_producer_table_lists_producers_by_group() -> None:
    producers = {"g": [ProducerInfo("c@1", "/10.0.0.1:5000", LanguageCode.GO, 399, 7)]}
    body = encode_producer_table(producers)

    assert body == (
        b'{"data":{"g":[{"clientId":"c@1","language":"GO","lastUpdateTimestamp":7,'
        b'"remoteIP":"/10.0.0.1:5000","version":399}]}}'
    )
    assert decode_producer_table(body) == producers


@pytest.mark.parametrize(
    ("written", "language"),
    [
        ('"GO"', LanguageCode.GO),
        ("3", LanguageCode.PYTHON),
        ('"ADA"', LanguageCode.OTHER),
        ("null", LanguageCode.OTHER),
        ("[]", LanguageCode.OTHER),
    ],
)
def test_language_is_decoded_from_name_or_ordinal_or_is_other(
    written: str, language: LanguageCode
) -> None:
    body = f'{{"connectionSet":[{{"clientId":"c","language":{written}}}]}}'.encode()

    assert decode_producer_connection(body) == [Connection("c", "", language)]


def test_group_list_is_an_array() -> None:
    assert encode_group_list(["a", "b"]) == b'{"groupList":["a","b"]}'
    assert decode_group_list(b'{"groupList":["a","b"]}') == ["a", "b"]


def test_group_subscription_may_be_missing() -> None:
    offline = GroupSubscription("g", "T")
    online = GroupSubscription("g", "T", SubscriptionData("T"))

    assert encode_group_subscription(offline) == b'{"group":"g","topic":"T"}'
    assert decode_group_subscription(encode_group_subscription(offline)) == offline
    assert decode_group_subscription(encode_group_subscription(online)) == online


@pytest.mark.parametrize(
    "body", [b'{"connectionSet":7}', b'{"connectionSet":[7]}', b'{"consumeType":"X"}', b"[]"]
)
def test_malformed_connections_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        decode_consumer_connection(body)
