"""Administration requests for name servers: each coroutine sends one request, without retries.

All raise TransportError if no answer arrives and RemoteError if the server refuses.
"""

from __future__ import annotations

from collections.abc import Mapping

from kourou.client.administration.admin_calls import Server
from kourou.protocol.codes import RequestCode
from kourou.protocol.kv_config import DeleteKVConfigRequestHeader, PutKVConfigRequestHeader
from kourou.protocol.properties_text import decode_properties_text, encode_properties_text
from kourou.protocol.routes import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)


async def get_config(name_server: Server) -> dict[str, str]:
    """Return the name server's options: RocketMQ's key -> text."""
    return decode_properties_text(await name_server.request_body(RequestCode.GET_NAMESRV_CONFIG))


async def update_config(name_server: Server, values: Mapping[str, str]) -> None:
    """Change options of the running name server; the changes are lost when it stops."""
    body = encode_properties_text(values)
    await name_server.request_body(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)


async def kv_put(name_server: Server, namespace: str, key: str, value: str) -> None:
    """Set the key, durably."""
    header = PutKVConfigRequestHeader(namespace, key, value)
    await name_server.request_body(RequestCode.PUT_KV_CONFIG, header)


async def kv_delete(name_server: Server, namespace: str, key: str) -> None:
    """Remove the key, durably; a missing key is no error."""
    header = DeleteKVConfigRequestHeader(namespace, key)
    await name_server.request_body(RequestCode.DELETE_KV_CONFIG, header)


async def wipe_write_perm(name_server: Server, broker_name: str) -> int:
    """Remove the write permission of a broker; return the number of its topics here."""
    header = WipeWritePermOfBrokerRequestHeader(broker_name)
    answer = await name_server.request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
    return answer.header(WipeWritePermOfBrokerResponseHeader).wipe_topic_count


async def add_write_perm(name_server: Server, broker_name: str) -> int:
    """Restore the write permission of a broker; return the number of its topics here."""
    header = AddWritePermOfBrokerRequestHeader(broker_name)
    answer = await name_server.request(RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
    return answer.header(AddWritePermOfBrokerResponseHeader).add_topic_count
