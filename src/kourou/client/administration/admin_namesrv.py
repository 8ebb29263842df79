"""AdminClient methods for name servers: options, key-value configuration, write permissions.

Name servers do not replicate, so each change is sent to all of them. If one does not answer or
refuses, the others still get the change; the error is raised afterwards, and a repeated call
completes the change.
"""

from __future__ import annotations

from collections.abc import Mapping

from kourou.client.administration.admin_calls import AdminCalls, Server
from kourou.errors import QueryNotFoundError
from kourou.protocol.codes import RequestCode
from kourou.protocol.kv_config import (
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    PutKVConfigRequestHeader,
    decode_kv_table,
)
from kourou.protocol.properties_text import decode_properties_text, encode_properties_text
from kourou.protocol.routes import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)


class NamesrvAdmin(AdminCalls):
    """Configures name servers."""

    async def namesrv_config(self) -> dict[str, dict[str, str]]:
        """Return the options of each name server by address, each as RocketMQ's key -> text."""
        return await self._call_name_servers(namesrv_config)

    async def update_namesrv_config(self, values: Mapping[str, str]) -> None:
        """Change options of all running name servers; the changes are lost when a server stops.

        Args:
            values: RocketMQ's key -> text. Each server changes either all options or none.

        Raises:
            NoPermissionError: an option is unknown, or cannot change while a server runs.
            RemoteSystemError: a value is out of range.
        """
        await self._call_name_servers(lambda server: update_namesrv_config(server, values))

    async def kv_get(self, namespace: str, key: str) -> str:
        """Return a value of the key-value configuration of one name server.

        Raises:
            QueryNotFoundError: there is no such key.
        """
        header = GetKVConfigRequestHeader(namespace, key)
        answer = await self._request_name_server(RequestCode.GET_KV_CONFIG, header)
        return answer.header(GetKVConfigResponseHeader).value or ""

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """Return the keys and values of a namespace, sorted; {} if there is no such namespace."""
        header = GetKVListByNamespaceRequestHeader(namespace)
        try:
            answer = await self._request_name_server(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
        except QueryNotFoundError:
            return {}
        return dict(sorted(decode_kv_table(answer.body).items()))

    async def kv_put(self, namespace: str, key: str, value: str) -> None:
        """Set a key, durably, on all name servers."""
        await self._call_name_servers(lambda server: kv_put(server, namespace, key, value))

    async def kv_delete(self, namespace: str, key: str) -> None:
        """Remove a key, durably, from all name servers; a missing key is no error."""
        await self._call_name_servers(lambda server: kv_delete(server, namespace, key))

    async def wipe_write_perm(self, broker_name: str) -> dict[str, int]:
        """Remove the write permission of a broker: producers stop sending to it.

        Producers follow with their next look-up of routes. The broker's messages can still be
        consumed. The change holds until `add_write_perm`, or until the broker registers a change of
        its topics.

        Returns:
            Name server address -> number of the broker's topics there; all are 0 if there is no
            such broker.
        """
        return await self._call_name_servers(lambda server: wipe_write_perm(server, broker_name))

    async def add_write_perm(self, broker_name: str) -> dict[str, int]:
        """Restore the write permission of a broker; returns as `wipe_write_perm`."""
        return await self._call_name_servers(lambda server: add_write_perm(server, broker_name))


# Requests to one server, without retries. They raise TransportError if no answer arrives, and
# RemoteError if the server refuses.


async def namesrv_config(name_server: Server) -> dict[str, str]:
    """Return the name server's options: RocketMQ's key -> text."""
    return decode_properties_text(await name_server.request_body(RequestCode.GET_NAMESRV_CONFIG))


async def update_namesrv_config(name_server: Server, values: Mapping[str, str]) -> None:
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
