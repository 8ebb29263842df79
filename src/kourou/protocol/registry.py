"""Registry of the headers and bodies of all requests of RocketMQ 5.5.0.

Listed requests are not necessarily served: the handlers of each server are in `broker/handlers.py`
and `namesrv/handlers.py`. User-defined bodies (messages) have no codec here; bodies that consist of
stored records can only be decoded.

Source: RequestCode.java and the request processors of broker, namesrv, controller and client.
"""

from __future__ import annotations

from typing import Final

from kourou.protocol import registry_admin as admin
from kourou.protocol import registry_clients as clients
from kourou.protocol import registry_namesrv as namesrv
from kourou.protocol.codes import RequestCode
from kourou.protocol.registry_specs import BodyCodec, RequestSpec

__all__ = ["REQUESTS", "UNUSED", "BodyCodec", "RequestSpec"]

UNUSED: Final = frozenset(
    {
        RequestCode.QUERY_BROKER_OFFSET,
        RequestCode.GET_TOPIC_CONFIG_LIST,
        RequestCode.GET_TOPIC_NAME_LIST,
        RequestCode.TRIGGER_DELETE_FILES,
        RequestCode.GET_CLIENT_CONFIG,
        RequestCode.SUSPEND_CONSUMER,
        RequestCode.RESUME_CONSUMER,
        RequestCode.RESET_CONSUMER_OFFSET_IN_CONSUMER,
        RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER,
        RequestCode.ADJUST_CONSUMER_THREAD_POOL,
        RequestCode.WHO_CONSUME_THE_MESSAGE,
        RequestCode.REGISTER_FILTER_SERVER,
        RequestCode.REGISTER_MESSAGE_FILTER_CLASS,
        RequestCode.ACK_LITE_MESSAGE,
        # Used between controllers, in the format of their consensus library.
        RequestCode.BROKER_CLOSE_CHANNEL_REQUEST,
        RequestCode.CHECK_NOT_ACTIVE_BROKER_REQUEST,
        RequestCode.GET_BROKER_LIVE_INFO_REQUEST,
        RequestCode.GET_SYNC_STATE_DATA_REQUEST,
        RequestCode.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST,
    }
)
"""Codes that have a name but that no RocketMQ server accepts from other programs. They have neither
header nor body."""

_SPECS: Final = (
    *clients.SENDING,
    *clients.CONSUMING,
    *clients.POP,
    *clients.LITE,
    *admin.TOPICS,
    *admin.GROUPS,
    *admin.OFFSETS,
    *admin.BROKER,
    *admin.AUTH,
    *namesrv.NAMESRV,
    *namesrv.REPLICAS,
    *namesrv.CONTROLLER,
    *(RequestSpec(code) for code in sorted(UNUSED)),
)

REQUESTS: Final[dict[int, RequestSpec]] = {spec.code: spec for spec in _SPECS}
"""Request code to the specification of the request."""
