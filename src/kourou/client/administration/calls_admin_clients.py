"""Administration requests for connected clients: each coroutine sends one request, once.

All raise TransportError if no answer arrives and RemoteError if the server refuses.
"""

from __future__ import annotations

from dataclasses import replace

from kourou.client.administration.admin_calls import Server
from kourou.client.administration.plain_names import own_entries, with_plain_names, with_plain_texts
from kourou.protocol.codes import RequestCode
from kourou.protocol.connections import (
    Connection,
    ConsumerConnection,
    GetAllProducerInfoRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    ProducerInfo,
    decode_consumer_connection,
    decode_producer_connection,
    decode_producer_table,
)
from kourou.protocol.running_info import (
    ConsumeMessageDirectlyResult,
    ConsumeMessageDirectlyResultRequestHeader,
    ConsumerRunningInfo,
    GetConsumerRunningInfoRequestHeader,
    decode_consume_directly_result,
    decode_consumer_running_info,
)


async def consumer_connection(broker: Server, group: str) -> ConsumerConnection:
    """Return the members of a group connected to the broker; if none, it answers with code 206."""
    header = GetConsumerConnectionListRequestHeader(group)
    body = await broker.request_body(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
    connection = with_plain_names(broker.pool.namespace, decode_consumer_connection(body))
    return replace(
        connection, differences=with_plain_texts(broker.pool.namespace, connection.differences)
    )


async def running_info(
    broker: Server, group: str, client_id: str, *, stack: bool
) -> ConsumerRunningInfo:
    """Return the settings, queues and rates of a consumer, requested through a broker."""
    header = GetConsumerRunningInfoRequestHeader(group, client_id, jstack_enable=stack)
    body = await broker.request_body(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    return with_plain_names(broker.pool.namespace, decode_consumer_running_info(body))


async def consume_directly(
    broker: Server, group: str, client_id: str, msg_id: str
) -> ConsumeMessageDirectlyResult:
    """Deliver one message that the broker stores to a consumer's listener, once."""
    header = ConsumeMessageDirectlyResultRequestHeader(group, client_id, msg_id)
    body = await broker.request_body(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
    return decode_consume_directly_result(body)


async def producer_connection(broker: Server, group: str) -> list[Connection]:
    """Return the producers of a group connected to the broker; if none, it answers with code 1."""
    header = GetProducerConnectionListRequestHeader(group)
    body = await broker.request_body(RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
    return decode_producer_connection(body)


async def producers(broker: Server) -> dict[str, list[ProducerInfo]]:
    """Return all producers connected to the broker, by group."""
    header = GetAllProducerInfoRequestHeader()
    body = await broker.request_body(RequestCode.GET_ALL_PRODUCER_INFO, header)
    return own_entries(broker.pool.namespace, decode_producer_table(body))
