"""State of a server process once it is ready, and its JSON line for programs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from kourou import __version__


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged part of the log that recovery skipped.

    Attributes:
        file: name of the file below the store's root.
        byte: position in the file at which the part begins.
        size: size of the part in bytes.
        reason: why the part cannot be read.
    """

    file: str
    byte: int
    size: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The state of a server process at the moment when it became ready.

    Attributes:
        namesrv: addresses of the name servers: its own, or those that it joined.
        own_namesrv: whether the name server runs in this process.
        namesrv_for_others: the own name server's address for other machines; None if it is the same
            or there is none.
        broker: the address on which the broker listens.
        found: result of opening the store, as text.
        damaged: damaged parts of the log that recovery found; it does not read the whole log.
        index_lag_bytes: bytes of the log that the key index does not cover yet.
        kept_hours: how long a log file is kept after its last write, in hours.
        expired_at: local hours at which expired files are deleted, such as "04;16".
        free_bytes: free space on the store's file system.
        profile: dev or prod.
        certificate: path of the self-signed certificate, for clients to trust; None without one.
        console: URL of /metrics, /healthz and /readyz; None without a console.
    """

    version: str = __version__
    pid: int
    namesrv: str
    own_namesrv: bool
    namesrv_for_others: str | None = None
    broker: str
    broker_name: str
    cluster: str
    store: str
    found: str
    damaged: tuple[Damage, ...] = ()
    index_lag_bytes: int = 0
    kept_hours: int
    expired_at: str
    free_bytes: int
    flush_disk_type: str
    flush_interval_ms: int
    segment_bytes: int
    profile: str
    is_exposed: bool
    certificate: str | None = None
    console: str | None = None


def ready_line(ready: Ready) -> str:
    """Return the state as one line of JSON; `"ready": true` comes first."""
    return json.dumps({"ready": True, **asdict(ready)}, ensure_ascii=False)
