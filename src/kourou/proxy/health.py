"""The service `grpc.health.v1.Health`, by which load balancers check the proxy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kourou.errors import GrpcError, MalformedBodyError
from kourou.http2.calls import Call, Kind, Method
from kourou.http2.grpc_messages import GrpcStatus
from kourou.proxy.pb.health import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthCheckResponseServingStatus,
)
from kourou.proxy.pb.pool import M, parse

HEALTH: Final = "grpc.health.v1.Health"
"""Name of the service."""


class HealthService:
    """Serves Check and Watch: all services are up until `stop`."""

    def __init__(self, services: Iterable[str]) -> None:
        """Serve the health of services, given by their full names, and of the server: ""."""
        self._services = {"", *services}
        self._watches: set[Call] = set()
        self._status = HealthCheckResponseServingStatus.SERVING

    def methods(self) -> dict[str, Method]:
        """Return the methods by path."""
        return {
            f"/{HEALTH}/Check": Method(Kind.UNARY, self._check),
            f"/{HEALTH}/Watch": Method(Kind.SERVER_STREAM, self._watch),
        }

    def stop(self) -> None:
        """Report to all watching clients that nothing is served any more, and end their calls."""
        self._status = HealthCheckResponseServingStatus.NOT_SERVING
        for call in self._watches:
            call.send(_answer(self._status))
            call.finish()
        self._watches.clear()

    def _check(self, call: Call, data: bytes) -> None:
        service = request_of(HealthCheckRequest, data).service
        if service not in self._services:
            raise GrpcError(GrpcStatus.NOT_FOUND, f"unknown service {service}")
        call.reply(_answer(self._status))

    def _watch(self, call: Call, data: bytes) -> None:
        is_known = request_of(HealthCheckRequest, data).service in self._services
        unknown = HealthCheckResponseServingStatus.SERVICE_UNKNOWN
        call.send(_answer(self._status if is_known else unknown))
        self._watches.add(call)
        call.on_cancel = lambda: self._watches.discard(call)


def request_of(kind: type[M], data: bytes) -> M:
    """Return the request of a call of a common service of gRPC.

    Raises:
        GrpcError: INVALID_ARGUMENT; the bytes do not encode it.
    """
    try:
        return parse(kind, data)
    except MalformedBodyError as error:
        raise GrpcError(GrpcStatus.INVALID_ARGUMENT, str(error)) from None


def _answer(status: HealthCheckResponseServingStatus) -> bytes:
    return HealthCheckResponse(status=status).SerializeToString()
