"""Apache RocketMQ 5.5.0 as a peer: its jars from Maven, its servers as processes on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).parent / "java"
CACHE = ROOT / "var" / "interop"
START_SECONDS = 60


def free_port() -> int:
    """Return a port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def free_broker_port() -> int:
    """Return a port with its neighbours free: a Java broker also takes port - 2 and port + 1."""
    while True:
        port = free_port()
        try:
            for neighbour in (port - 2, port + 1):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", neighbour))
        except OSError:
            continue
        return port


def class_path() -> str:
    """Return the class path of the jars and of our driver, fetching and compiling them once."""
    library, classes = CACHE / "lib", CACHE / "classes"
    if shutil.which("mvn") is None or shutil.which("javac") is None:
        raise RuntimeError("the interop tests need a JDK 17 (javac) and Maven (mvn) on the PATH")
    if not (library / ".whole").exists():
        subprocess.run(
            [
                "mvn",
                "-q",
                "-B",
                "-f",
                str(SOURCE / "pom.xml"),
                "dependency:copy-dependencies",
                f"-DoutputDirectory={library}",
                "-DincludeScope=runtime",
            ],
            check=True,
        )
        (library / ".whole").touch()
    classes.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            "javac",
            "-nowarn",
            "-cp",
            f"{library}/*",
            "-d",
            str(classes),
            str(SOURCE / "InteropClient.java"),
        ],
        check=True,
    )
    return f"{classes}:{library}/*"


def run_client(jars: str, *arguments: object, timeout_s: float = 180) -> list[list[str]]:
    """Run the official client with a command of InteropClient; return its lines as words."""
    done = subprocess.run(
        ["java", "-Xmx256m", "-Dfile.encoding=UTF-8", "-cp", jars, "InteropClient"]
        + [str(a) for a in arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.split(" ") for line in done.stdout.splitlines()]


@dataclass
class JavaServer:
    """A Java name server and broker."""

    namesrv_addr: str
    broker_addr: str
    processes: Sequence[subprocess.Popen[bytes]]

    def stop(self) -> None:
        """End both and wait; twice as long as Java takes, then without asking."""
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def start_java(
    jars: str,
    home: Path,
    *,
    flush: str = "SYNC_FLUSH",
    heap: str = "512m",
    store: Path | None = None,
) -> JavaServer:
    """Start a Java name server and broker below `home`; return when both answer.

    Its store is `store`, by default a new one; the segment size is that of our `dev` profile.
    """
    namesrv_port, broker_port = free_port(), free_broker_port()
    home.mkdir(parents=True, exist_ok=True)
    (home / "namesrv.conf").write_text(f"listenPort={namesrv_port}\n")
    (home / "broker.conf").write_text(
        "brokerClusterName=DefaultCluster\nbrokerName=broker-a\nbrokerId=0\nbrokerIP1=127.0.0.1\n"
        f"listenPort={broker_port}\nnamesrvAddr=127.0.0.1:{namesrv_port}\n"
        f"storePathRootDir={store or home / 'store'}\nflushDiskType={flush}\n"
        "messageDelayLevel=1s 1s 1s 1s 1s 1s\nmappedFileSizeCommitLog=67108864\n"
    )
    processes = []
    for memory, main, conf, port in (
        ("128m", "org.apache.rocketmq.namesrv.NamesrvStartup", "namesrv.conf", namesrv_port),
        (heap, "org.apache.rocketmq.broker.BrokerStartup", "broker.conf", broker_port),
    ):
        with (home / f"{conf}.log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [
                        "java",
                        f"-Xms{memory}",
                        f"-Xmx{memory}",
                        f"-Duser.home={home}",
                        "-cp",
                        jars,
                        main,
                        "-c",
                        str(home / conf),
                    ],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "ROCKETMQ_HOME": str(home)},
                )
            )
        _wait_for_port(port, processes[-1], home / f"{conf}.log")
    return JavaServer(f"127.0.0.1:{namesrv_port}", f"127.0.0.1:{broker_port}", processes)


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS  # noqa: TID251 - a real process has real time
    while time.monotonic() < deadline:  # noqa: TID251
        assert process.poll() is None, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            continue
        return
    raise TimeoutError(f"no Java server on port {port} in {START_SECONDS} s: {log.read_text()}")
