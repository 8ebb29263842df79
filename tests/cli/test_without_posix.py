"""Tests of clients and commands on a system without POSIX calls, such as Windows.

A child process removes the calls that Windows lacks, after it has imported third-party modules,
whose imports depend on the real platform.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kourou.testing.process import Serving

TAKE_AWAY = """
import asyncio, concurrent.futures, ctypes, multiprocessing, os, signal, socket, sqlite3, ssl, sys
import tempfile, threading, time
import msgspec, rich.console, typer.main, typer.rich_utils

POSIX_MODULES = {"fcntl", "grp", "pwd", "resource", "termios", "tty"}

class NotThere:
    def find_spec(self, name, path=None, target=None):
        if name in POSIX_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotThere())
for name in POSIX_MODULES:
    sys.modules.pop(name, None)
for module, names in {
    os: "register_at_fork fork pread preadv pwrite pwritev O_DIRECTORY O_CLOEXEC RWF_NOWAIT "
        "fdatasync statvfs posix_fadvise geteuid getuid sysconf uname eventfd",
    signal: "SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGKILL SIGALRM SIGCHLD pthread_kill",
    time: "CLOCK_BOOTTIME CLOCK_MONOTONIC CLOCK_REALTIME clock_gettime",
    socket: "SO_REUSEPORT TCP_USER_TIMEOUT",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

def no_library(name):
    raise TypeError("LoadLibrary() argument 1 must be str, not None")

ctypes.CDLL = ctypes.PyDLL = no_library
sys.platform = "win32"
"""

IMPORT = """
import kourou, kourou.blocking
for name in kourou.__all__:
    getattr(kourou, name)
for name in kourou.blocking.__all__:
    getattr(kourou.blocking, name)
"""

USE = """
import kourou.blocking
from kourou import Message, MessageModel, Producer, PushConsumer, PushConsumerConfig, run
from kourou.errors import UsageError

address = sys.argv[1]
with kourou.blocking.Producer("orders", address) as producer:
    producer.send(Message("without-posix", b"17"))
consumer = PushConsumer("without-posix", address, start="earliest")
consumer.subscribe("without-posix")

@consumer.listen
def charge(message):
    print("charged", message.body.decode(), flush=True)
    signal.raise_signal(signal.SIGINT)

run(consumer)
broadcasting = PushConsumerConfig(message_model=MessageModel.BROADCASTING)
try:
    PushConsumer("without-posix-either", address, config=broadcasting)
except UsageError as error:
    print(error)
"""

COMMAND = """
sys.argv = ["kourou", *sys.argv[1:]]
from kourou.cli.main import main
main()
"""


def without_posix(program: str, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run the program in a child process without the calls that Windows lacks."""
    return subprocess.run(
        [sys.executable, "-c", TAKE_AWAY + program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"HOME": str(home), "PYTHONPATH": ":".join(sys.path)},
    )


def test_all_public_names_load(tmp_path: Path) -> None:
    ended = without_posix(IMPORT, home=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_clients_send_and_consume(serving: Serving, tmp_path: Path) -> None:
    ended = without_posix(USE, serving.namesrv, home=tmp_path)
    assert ended.returncode == 0, ended.stderr
    charged, refused = ended.stdout.splitlines()
    assert charged == "charged 17"
    assert refused.startswith(f"the use of {tmp_path}/.rocketmq_offsets needs Linux or macOS")


def test_client_commands_work(serving: Serving, tmp_path: Path) -> None:
    ended = without_posix(COMMAND, "topic", "list", "--namesrv", serving.namesrv, home=tmp_path)
    assert ended.returncode == 0, ended.stderr
    ended = without_posix(COMMAND, "doctor", "--namesrv", serving.namesrv, home=tmp_path)
    assert "needs Linux or macOS" in " ".join(ended.stdout.split()), ended.stderr


def test_serve_is_refused_with_the_reason(tmp_path: Path) -> None:
    ended = without_posix(COMMAND, "serve", home=tmp_path)
    assert ended.returncode == 2
    assert "`kourou serve` needs Linux or macOS" in ended.stderr
