"""Requests of RocketMQ 5.5.0 that no program of Kourou serves or sends.

Only tests load this package. To serve one of its modules, move it to `kourou.protocol` and its
entry from `_SPECS` to `kourou.protocol.registry`.
"""

from __future__ import annotations

from typing import Final

from kourou.protocol import registry
from kourou.protocol.codes import RequestCode
from kourou.protocol.request_spec import RequestSpec
from kourou.protocol.unserved import auth, brokers, lite

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
    *lite.SPECS,
    *auth.SPECS,
    *brokers.SPECS,
    *(RequestSpec(code) for code in sorted(UNUSED)),
)

ALL_REQUESTS: Final[dict[int, RequestSpec]] = {
    **registry.REQUESTS,
    **{spec.code: spec for spec in _SPECS},
}
"""Request code to the specification of the request, for every code of RocketMQ 5.5.0."""
