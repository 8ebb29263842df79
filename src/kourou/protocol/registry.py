"""Registry of the headers and bodies of all requests that Kourou serves or sends.

The handlers of each server are in `broker/handlers.py` and `namesrv/handlers.py`. User-defined
bodies (messages) have no codec here; bodies that consist of stored records can only be decoded. The
other requests of RocketMQ 5.5.0 are in the package `unserved`.

Source: RequestCode.java and the request processors of broker, namesrv, controller and client.
"""

from __future__ import annotations

from typing import Final

from kourou.protocol import (
    brokers,
    clients,
    connections,
    groups,
    kv_config,
    offset_table,
    offsets,
    pulling,
    queue_assignment,
    routes,
    running_info,
    sending,
    stats,
    topic_table,
    topics,
)
from kourou.protocol.controller import headers as controller
from kourou.protocol.popping import headers as popping
from kourou.protocol.request_spec import RequestSpec

_SPECS: Final = (
    *sending.SPECS,
    *pulling.SPECS,
    *popping.SPECS,
    *offsets.SPECS,
    *offset_table.SPECS,
    *clients.SPECS,
    *connections.SPECS,
    *running_info.SPECS,
    *queue_assignment.SPECS,
    *topics.SPECS,
    *topic_table.SPECS,
    *groups.SPECS,
    *stats.SPECS,
    *brokers.SPECS,
    *routes.SPECS,
    *kv_config.SPECS,
    *controller.SPECS,
)

REQUESTS: Final[dict[int, RequestSpec]] = {spec.code: spec for spec in _SPECS}
"""Request code to the specification of the request."""
