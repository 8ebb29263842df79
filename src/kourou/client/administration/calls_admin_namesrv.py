"""Requests of administration to name servers: each coroutine asks one, once.

All raise TransportError when no answer comes and RemoteError when the server refuses.
"""

from __future__ import annotations

from collections.abc import Mapping

from kourou.client.administration.admin_calls import Server
from kourou.protocol.codes import RequestCode
from kourou.protocol.headers_kv import (
    DeleteKVConfigRequestHeader,
    PutKVConfigRequestHeader,
)
from kourou.protocol.headers_route import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from kourou.protocol.properties_text import decode_properties_text, encode_properties_text


async def get_config(name_server: Server) -> dict[str, str]:
    """Return the name server's options: RocketMQ's names -> texts."""
    return decode_properties_text(await name_server.ask(RequestCode.GET_NAMESRV_CONFIG))


async def update_config(name_server: Server, values: Mapping[str, str]) -> None:
    """Change options of the name server, until it stops."""
    body = encode_properties_text(values)
    await name_server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)


async def kv_put(name_server: Server, namespace: str, key: str, value: str) -> None:
    """Set the key, durably."""
    header = PutKVConfigRequestHeader(namespace, key, value)
    await name_server.ask(RequestCode.PUT_KV_CONFIG, header)


async def kv_delete(name_server: Server, namespace: str, key: str) -> None:
    """Remove the key, durably; one that is not there is no error."""
    header = DeleteKVConfigRequestHeader(namespace, key)
    await name_server.ask(RequestCode.DELETE_KV_CONFIG, header)


async def wipe_write_perm(name_server: Server, broker_name: str) -> int:
    """Let producers no longer write to the broker; return how many topics it has here."""
    header = WipeWritePermOfBrokerRequestHeader(broker_name)
    answer = await name_server.exchange(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
    return answer.header(WipeWritePermOfBrokerResponseHeader).wipe_topic_count


async def add_write_perm(name_server: Server, broker_name: str) -> int:
    """Let producers write to the broker again; return how many topics it has here."""
    header = AddWritePermOfBrokerRequestHeader(broker_name)
    answer = await name_server.exchange(RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
    return answer.header(AddWritePermOfBrokerResponseHeader).add_topic_count
