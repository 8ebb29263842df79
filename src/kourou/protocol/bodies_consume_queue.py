"""JSON body with the entries of a consume queue (QUERY_CONSUME_QUEUE, 321).

Source: QueryConsumeQueueResponseBody.java, ConsumeQueueData.java.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.model.subscription import SubscriptionData
from kourou.protocol.bodies_client import subscription_from_json, subscription_to_json
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.json_records import from_json, to_json
from kourou.protocol.json_values import as_object, get_integer, get_list, get_optional_text


@dataclass(frozen=True, slots=True)
class ConsumeQueueData:
    """One entry of a consume queue.

    Attributes:
        physic_offset: the record's physical offset.
        physic_size: the record's size in bytes.
        extend_data_json: data of the entry's extension, which exists for bit map filters only.
        eval: whether the entry passes the filter.
        msg: the reason why the message could not be read for the filter.
    """

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


@dataclass(frozen=True, slots=True)
class QueryConsumeQueueResponse:
    """Entries of a consume queue.

    Attributes:
        min_queue_index: the smallest queue offset.
        max_queue_index: the queue offset of the next message to be stored.
        subscription: that of the group in the request, if it is connected.
        filter_data: the group's filter as text, or the reason why it has none.
    """

    queue_data: tuple[ConsumeQueueData, ...] = ()
    max_queue_index: int = 0
    min_queue_index: int = 0
    subscription: SubscriptionData | None = None
    filter_data: str | None = None


def encode_consume_queue(response: QueryConsumeQueueResponse) -> bytes:
    """Return the response body of QUERY_CONSUME_QUEUE (321)."""
    subscription_data = response.subscription
    return dumps(
        {
            "filterData": response.filter_data,
            "maxQueueIndex": response.max_queue_index,
            "minQueueIndex": response.min_queue_index,
            "queueData": to_json(response.queue_data),
            "subscriptionData": None
            if subscription_data is None
            else subscription_to_json(subscription_data),
        }
    )


def decode_consume_queue(body: bytes) -> QueryConsumeQueueResponse:
    """Return the entries decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = as_object(loads(body, bare_keys_bytes_max=FRAME_SIZE_MAX), "consume queue")
    subscription_data = data.get("subscriptionData")
    return QueryConsumeQueueResponse(
        tuple(
            from_json(ConsumeQueueData, entry, "queueData") for entry in get_list(data, "queueData")
        ),
        get_integer(data, "maxQueueIndex"),
        get_integer(data, "minQueueIndex"),
        None
        if subscription_data is None
        else subscription_from_json(as_object(subscription_data, "subscriptionData")),
        get_optional_text(data, "filterData"),
    )
