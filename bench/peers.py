"""Peers that can be measured on this machine: installs of Kourou, Java, and others."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from bench import bare_install, compiled_install, java_server
from bench.other_peers import NATS, REDIS, nats, redis
from bench.servers import start_kourou
from bench.turn import Peer

FAST: Final = "kourou"
BARE: Final = "kourou-bare"
COMPILED: Final = "kourou-compiled"
JAVA: Final = "java"
BEFORE: Final = "before"

PeerOrReason = Peer | str
"""A peer, or the reason why it cannot be measured here."""


def _fast() -> PeerOrReason:
    missing = [name for name in ("uvloop", "isal") if importlib.util.find_spec(name) is None]
    if missing:
        return f"this environment lacks {' and '.join(missing)} of the extra `fast`"
    about, client = "Kourou with its extra `fast`: uvloop, isal", (sys.executable, "uvloop")
    proxy = partial(start_kourou, has_proxy=True)
    return Peer(FAST, about, start_kourou, is_ours=True, client=client, start_with_proxy=proxy)


def _bare() -> PeerOrReason:
    reason = bare_install.build()
    if reason is not None:
        return reason
    start = partial(start_kourou, name=BARE, python=str(bare_install.PYTHON))
    about, client = "Kourou without extras: asyncio, zlib", (str(bare_install.PYTHON), "asyncio")
    return Peer(BARE, about, start, is_ours=True, client=client)


def _compiled() -> PeerOrReason:
    reason = compiled_install.build()
    if reason is not None:
        return reason
    start = partial(start_kourou, name=COMPILED, source=compiled_install.SOURCE)
    about = "Kourou with its extra `fast` and compiled modules"
    proxy = partial(start, has_proxy=True)
    return Peer(COMPILED, about, start, is_ours=True, start_with_proxy=proxy)


def _java() -> PeerOrReason:
    reason = java_server.missing()
    if reason is not None:
        return reason
    return Peer(
        JAVA,
        java_server.ABOUT,
        java_server.start,
        start_with_proxy=java_server.start_with_proxy,
        first_warm_s=java_server.WARM_SECONDS,
        start_warm_s=java_server.START_WARM_SECONDS,
        is_slow=True,
    )


def _before(source: Path | None) -> PeerOrReason:
    if source is None:
        return "--before must name its `src`"
    start = partial(start_kourou, name=BEFORE, source=source)
    proxy = partial(start, has_proxy=True) if (source / "kourou" / "proxy").is_dir() else None
    about = f"Kourou of {source}, with the extra `fast`"
    return Peer(BEFORE, about, start, start_with_proxy=proxy)


def available(
    names: Sequence[str], before: Path | None, report: Callable[[str], None]
) -> list[Peer]:
    """Return the peers with these names that can be measured; report why others cannot.

    Raises:
        KeyError: a name is unknown.
    """
    constructors: dict[str, Callable[[], PeerOrReason]] = {
        **CONSTRUCTORS,
        BEFORE: partial(_before, before),
    }
    peers = []
    for name in names:
        result = constructors[name]()
        if isinstance(result, Peer):
            peers.append(result)
        else:
            report(f"skipped: {name}: {result}")
    return peers


CONSTRUCTORS: Final[dict[str, Callable[[], PeerOrReason]]] = {
    FAST: _fast,
    BARE: _bare,
    COMPILED: _compiled,
    JAVA: _java,
    REDIS: redis,
    NATS: nats,
}
"""Constructors by name, in the order of the table's columns."""
