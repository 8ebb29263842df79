"""What a process that serves knows of itself once it is ready, and the JSON line for programs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from kourou import __version__


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of the log that recovery could not read, and stepped over.

    Attributes:
        file: its name below the store's root.
        byte: of the file, at which the part begins.
        size: of the part, in bytes.
        reason: why there is no record.
    """

    file: str
    byte: int
    size: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The state of a process that serves, at the moment it became ready.

    Attributes:
        namesrv: the name servers' addresses; its own or those it joined.
        own_namesrv: whether the name server runs in this process.
        namesrv_for_others: its address for clients on other machines, where it is another one.
        broker: the address listened on.
        found: what the store held when it was opened, for people.
        damaged: what of its log cannot be read, as far as opening it looked.
        index_lag_bytes: of the log, which the key index has still to follow.
        kept_hours: how long messages are kept after their file was last written.
        expired_at: local hours at which older ones go, as "04;16".
        free_bytes: on the store's file system.
        profile: dev or prod.
        certificate: the self-signed certificate, for clients to trust; None without.
        console: where /metrics, /healthz and /readyz are; None without.
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
