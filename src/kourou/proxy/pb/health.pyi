from enum import IntEnum
from kourou.proxy.pb.wire import WireMessage

class HealthCheckResponseServingStatus(IntEnum):
    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3

class HealthCheckRequest(WireMessage):
    service: str
    def __init__(
        self,
        *,
        service: str | None = ...,
    ) -> None: ...

class HealthCheckResponse(WireMessage):
    status: int
    def __init__(
        self,
        *,
        status: int | None = ...,
    ) -> None: ...
