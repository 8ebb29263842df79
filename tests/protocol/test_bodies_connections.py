"""Who is connected is told as Java tells it."""

from __future__ import annotations

import pytest

from kourou.errors import MalformedBodyError
from kourou.model.group import ConsumeFromWhere, ConsumeType, MessageModel
from kourou.model.subscription import SubscriptionData
from kourou.protocol.bodies import (
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
from kourou.protocol.codes import LanguageCode

CLIENT = Connection("c@1", "10.0.0.1:5000", LanguageCode.PYTHON, 513)
CLIENT_JSON = (
    b'{"connectionSet":[{"clientAddr":"10.0.0.1:5000","clientId":"c@1",'
    b'"language":"PYTHON","version":513}]'
)


def test_consumers_are_told_with_what_they_want() -> None:
    told = ConsumerConnection(
        [CLIENT],
        ConsumeType.POP,
        MessageModel.BROADCASTING,
        ConsumeFromWhere.TIMESTAMP,
        {"T": SubscriptionData("T")},
    )
    body = encode_consumer_connection(told)

    assert body.startswith(CLIENT_JSON + b',"consumeFromWhere":"CONSUME_FROM_TIMESTAMP"')
    assert decode_consumer_connection(body) == told


def test_producers_of_a_group_are_told() -> None:
    body = encode_producer_connection([CLIENT])

    assert body == CLIENT_JSON + b"}"
    assert decode_producer_connection(body) == [CLIENT]


def test_all_producers_are_told_by_their_group() -> None:
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
def test_a_language_is_a_name_or_a_number_or_another(written: str, language: LanguageCode) -> None:
    body = f'{{"connectionSet":[{{"clientId":"c","language":{written}}}]}}'.encode()

    assert decode_producer_connection(body) == [Connection("c", "", language)]


def test_groups_of_a_topic_are_a_list() -> None:
    assert encode_group_list(["a", "b"]) == b'{"groupList":["a","b"]}'
    assert decode_group_list(b'{"groupList":["a","b"]}') == ["a", "b"]


def test_a_groups_subscription_may_be_missing() -> None:
    offline = GroupSubscription("g", "T")
    online = GroupSubscription("g", "T", SubscriptionData("T"))

    assert encode_group_subscription(offline) == b'{"group":"g","topic":"T"}'
    assert decode_group_subscription(encode_group_subscription(offline)) == offline
    assert decode_group_subscription(encode_group_subscription(online)) == online


@pytest.mark.parametrize(
    "body", [b'{"connectionSet":7}', b'{"connectionSet":[7]}', b'{"consumeType":"X"}', b"[]"]
)
def test_connections_of_another_form_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        decode_consumer_connection(body)
