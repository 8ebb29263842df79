"""Other message systems for comparison, measured with the same load generator.

Each stores its files on the same disk. With `sync`, each acknowledgment follows a sync; with
`async`, the system uses its default.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.load_generator import VAR
from bench.servers import Dialect, Flush, Server, free_ports, launch
from bench.turn import Peer

REDIS: Final = "redis"
NATS: Final = "nats"
_REDIS_SYNC: Final[Mapping[Flush, str]] = {"sync": "always", "async": "everysec"}
_NATS_SYNC: Final[Mapping[Flush, str]] = {"sync": "sync_interval: always", "async": ""}
_SEARCHED: Final = os.pathsep.join((str(VAR / "peers"), str(VAR / "peers" / "bin")))


def redis() -> Peer | str:
    """Return Redis Streams (XADD to one stream per queue, append-only file on), or a reason."""
    program = _find("redis-server")
    if program is None:
        return "no redis-server on the PATH (Debian: apt install redis-server)"

    def start(home: Path, flush: Flush) -> Server:
        home.mkdir(parents=True, exist_ok=True)
        port = free_ports()
        words = ("--bind", "127.0.0.1", "--dir", str(home), "--appendonly", "yes", "--save", "")
        sync = ("--appendfsync", _REDIS_SYNC[flush], "--auto-aof-rewrite-percentage", "0")
        return _launch(REDIS, "redis", port, (program, "--port", str(port), *words, *sync), home)

    return Peer(
        REDIS,
        f"{_version(program)}, appendfsync always (sync) or everysec (async)",
        start,
        is_remoting=False,
    )


def nats() -> Peer | str:
    """Return NATS JetStream (one stream in files, acknowledged publishes), or a reason."""
    program = _find("nats-server")
    if program is None:
        return "no nats-server 2.10 on the PATH (go install github.com/nats-io/nats-server/v2)"

    def start(home: Path, flush: Flush) -> Server:
        home.mkdir(parents=True, exist_ok=True)
        port = free_ports()
        (home / "nats.conf").write_text(
            f"host: 127.0.0.1\nport: {port}\n"
            f'jetstream {{ store_dir: "{home}", max_file_store: 100GB\n {_NATS_SYNC[flush]} }}\n'
        )
        return _launch(NATS, "nats", port, (program, "-c", str(home / "nats.conf")), home)

    about = f"{_version(program)}, file storage, sync_interval always (sync) or 2 minutes (async)"
    return Peer(NATS, about, start, is_remoting=False)


def _launch(name: str, dialect: Dialect, port: int, command: tuple[str, ...], home: Path) -> Server:
    server = Server(name, f"127.0.0.1:{port}", "", (), dialect=dialect)
    return launch(server, [command], home, {**os.environ, "HOME": str(home)})


def _find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path=_SEARCHED)


def _version(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().splitlines()[0]
