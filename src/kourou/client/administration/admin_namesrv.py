"""AdminClient: name servers, their options, key-value configuration and write permissions.

Name servers do not talk to each other: what changes something tells all of them. One that is away
or refuses does not keep the others from being told; its error is raised afterwards, and calling
again completes the change.
"""

from __future__ import annotations

from collections.abc import Mapping

from kourou.client.administration import calls_admin_namesrv as calls
from kourou.client.administration.admin_calls import AdminCalls
from kourou.errors import QueryNotFoundError
from kourou.protocol.bodies import decode_kv_table
from kourou.protocol.codes import RequestCode
from kourou.protocol.headers_kv import (
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
)


class NamesrvAdmin(AdminCalls):
    """Configures name servers."""

    async def namesrv_config(self) -> dict[str, dict[str, str]]:
        """Return the options of each name server, by its address: RocketMQ's names -> texts."""
        return await self._tell_name_servers(calls.get_config)

    async def update_namesrv_config(self, values: Mapping[str, str]) -> None:
        """Change options of all name servers, until they stop.

        Args:
            values: RocketMQ's names -> texts. Each server takes all of them or none.

        Raises:
            NoPermissionError: an option cannot be changed while it runs, or is none of its.
            RemoteSystemError: a value is out of its range.
        """
        await self._tell_name_servers(lambda server: calls.update_config(server, values))

    async def kv_get(self, namespace: str, key: str) -> str:
        """Return a value of the key-value configuration, as one name server has it.

        Raises:
            QueryNotFoundError: there is no such key.
        """
        header = GetKVConfigRequestHeader(namespace, key)
        answer = await self._ask_name_server(RequestCode.GET_KV_CONFIG, header)
        return answer.header(GetKVConfigResponseHeader).value or ""

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """Return what the namespace holds, sorted by key; {} if there is no such namespace."""
        header = GetKVListByNamespaceRequestHeader(namespace)
        try:
            answer = await self._ask_name_server(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
        except QueryNotFoundError:
            return {}
        return dict(sorted(decode_kv_table(answer.body).items()))

    async def kv_put(self, namespace: str, key: str, value: str) -> None:
        """Set a key, durably, on all name servers."""
        await self._tell_name_servers(lambda server: calls.kv_put(server, namespace, key, value))

    async def kv_delete(self, namespace: str, key: str) -> None:
        """Remove a key, durably, from all name servers; one that is not there is no error."""
        await self._tell_name_servers(lambda server: calls.kv_delete(server, namespace, key))

    async def wipe_write_perm(self, broker_name: str) -> dict[str, int]:
        """Take a broker out of service for producers: they stop writing with their next route.

        What it holds can still be consumed. It holds until `add_write_perm`, or until the broker
        registers a change of its topics.

        Returns:
            How many topics of the broker each name server knows, by its address. 0 everywhere:
            there is no such broker.
        """
        return await self._tell_name_servers(
            lambda server: calls.wipe_write_perm(server, broker_name)
        )

    async def add_write_perm(self, broker_name: str) -> dict[str, int]:
        """Take a broker into service for producers again; returns as `wipe_write_perm`."""
        return await self._tell_name_servers(
            lambda server: calls.add_write_perm(server, broker_name)
        )
