"""AdminClient: brokers, their configuration and statistics."""

from __future__ import annotations

from kourou.client.admin_calls import AdminCalls
from kourou.protocol.bodies import decode_kv_table
from kourou.protocol.codes import RequestCode


class BrokerAdmin(AdminCalls):
    """Describes and configures brokers."""

    async def runtime_info(self, address: str) -> dict[str, str]:
        """Return what the broker at `host:port` tells of itself: RocketMQ's names -> texts."""
        body = await self._server(address).ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        return decode_kv_table(body)
