"""What a process that serves knows of itself once it is ready, and the JSON line for programs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from kourou import __version__


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The state of a process that serves, at the moment it became ready.

    Attributes:
        namesrv: the name servers' addresses; its own or those it joined.
        own_namesrv: whether the name server runs in this process.
        broker: the address listened on.
        found: what the store held when it was opened, for people.
        free_bytes: on the store's file system.
        profile: dev or prod.
        console: where /metrics, /healthz and /readyz are; None without.
    """

    version: str = __version__
    pid: int
    namesrv: str
    own_namesrv: bool
    broker: str
    broker_name: str
    cluster: str
    store: str
    found: str
    free_bytes: int
    flush_disk_type: str
    flush_interval_ms: int
    segment_bytes: int
    profile: str
    is_exposed: bool
    console: str | None = None


def ready_line(ready: Ready) -> str:
    """Return the state as one line of JSON; `"ready": true` comes first."""
    return json.dumps({"ready": True, **asdict(ready)}, ensure_ascii=False)
