"""Third-party clients as programs, fetched and built once below `var/interop`.

Each prints one fact per line, as words separated by blanks. All print the same facts, which
InteropClient.java lists.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
CACHE = ROOT / "var" / "interop"
POMS = {"5.5.0": "pom.xml", "4.9.8": "pom-4.9.8.xml", "5.5.0-proxy": "pom-proxy.xml"}
JAVA_GRPC = "5.2.0"
"""Version of the official 5.x Java client."""
BUILD_SECONDS = 900


@dataclass(frozen=True)
class Client:
    """A program with a RocketMQ client.

    Attributes:
        name: name of the client.
        prefix: prefix of the bodies of its messages.
        command: the command line before its arguments.
    """

    name: str
    prefix: str
    command: Sequence[str]

    def run(self, *arguments: object, timeout_s: float = 180) -> list[list[str]]:
        """Run it with `arguments`; return its lines as words."""
        return [line.split(" ") for line in self.text(*arguments, timeout_s=timeout_s).splitlines()]

    def text(self, *arguments: object, timeout_s: float = 60) -> str:
        """Run it with `arguments`; return its output."""
        done = subprocess.run(
            [*self.command, *(str(argument) for argument in arguments)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            cwd=CACHE,  # some write files to the working directory
            env={**os.environ, "NAMESRV_ADDR": ""},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def jars(version: str) -> str:
    """Return the class path of RocketMQ's jars of a release, fetching them once.

    Those of a proxy, whose versions of libraries differ, are `5.5.0-proxy`.
    """
    _need("mvn", "Maven")
    library, pom = CACHE / f"lib-{version}", HERE / "java" / POMS[version]
    whole = library / f".whole-{hashlib.sha256(pom.read_bytes()).hexdigest()}"
    if not whole.exists():
        build(
            *("mvn", "-q", "-B", "-f", str(pom)),
            *("dependency:copy-dependencies", f"-DoutputDirectory={library}"),
            "-DincludeScope=runtime",
        )
        whole.touch()
    return f"{library}/*"


def java_client(version: str) -> Client:
    """Return the official Java client of a release, driven by InteropClient.java."""
    _need("javac", "a JDK 17")
    library, classes = jars(version), CACHE / f"classes-{version}"
    classes.mkdir(parents=True, exist_ok=True)
    source = str(HERE / "java" / "InteropClient.java")
    build("javac", "-nowarn", "-cp", library, "-d", str(classes), source)
    main = (*java(f"{classes}:{library}"), "InteropClient")
    return Client(f"Java {version}", "java", main)


def broker_classes() -> str:
    """Return the jar of Broker.java, which starts the Java broker 5.5.0."""
    _need("javac", "a JDK 17")
    classes, jar = CACHE / "classes-broker", CACHE / "broker.jar"
    if not jar.exists():
        classes.mkdir(parents=True, exist_ok=True)
        source = str(HERE / "java" / "Broker.java")
        build("javac", "-nowarn", "-cp", jars("5.5.0"), "-d", str(classes), source)
        build("jar", "cf", str(jar), "-C", str(classes), ".")  # archives of classes need jars
    return str(jar)


def admin_command() -> Sequence[str]:
    """Return the command line of `mqadmin` 5.5.0, driven by Admin.java, without logs."""
    _need("javac", "a JDK 17")
    library, classes = jars("5.5.0"), CACHE / "classes-admin"
    classes.mkdir(parents=True, exist_ok=True)
    build("javac", "-nowarn", "-cp", library, "-d", str(classes), str(HERE / "java" / "Admin.java"))
    return (*java(f"{HERE / 'java' / 'quiet'}:{classes}:{library}"), "Admin")


def etcd() -> str:
    """Return the program of etcd, from the machine or from Debian's package."""
    found = shutil.which("etcd")
    if found is not None:
        return found
    program = CACHE / "etcd" / "usr" / "bin" / "etcd"
    if not program.exists():
        _need("apt-get", "Debian's etcd-server")
        program.parents[2].mkdir(parents=True, exist_ok=True)
        build("apt-get", "download", "-q", "etcd-server", directory=program.parents[2])
        (package,) = program.parents[2].glob("etcd-server_*.deb")
        build("dpkg", "-x", str(package), str(program.parents[2]))
    return str(program)


def go_client() -> Client:
    """Return the official Go client, driven by go/main.go."""
    _need("go", "Go 1.22")
    program = CACHE / "go-client"
    build("go", "build", "-buildvcs=false", "-o", str(program), ".", directory=HERE / "go")
    return Client("Go", "go", (str(program),))


def h2spec() -> Sequence[str]:
    """Return the command line of h2spec, the conformance tests of HTTP/2."""
    _need("go", "Go 1.22")
    program, source = CACHE / "h2spec", "github.com/summerwind/h2spec/cmd/h2spec"
    build("go", "build", "-buildvcs=false", "-o", str(program), source, directory=HERE / "h2spec")
    return (str(program),)


def grpcurl() -> Sequence[str]:
    """Return the command line of grpcurl, which calls gRPC services by reflection."""
    _need("go", "Go 1.25")
    program, source = CACHE / "grpcurl", "github.com/fullstorydev/grpcurl/cmd/grpcurl"
    build("go", "build", "-buildvcs=false", "-o", str(program), source, directory=HERE / "grpcurl")
    return (str(program),)


def node_client() -> Client:
    """Return the Node client `ali-ons`, driven by node/interop.js."""
    _need("npm", "Node 20")
    home = CACHE / "node"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", "interop.js"):
        shutil.copy(HERE / "node" / name, home)
    build("npm", "ci", "--silent", "--no-audit", "--no-fund", directory=home)
    return Client("Node", "node", ("node", str(home / "interop.js")))


def grpc_clients() -> dict[str, Client]:
    """Return the official 5.x clients, driven by the programs in grpc/."""
    return {
        "java": _grpc_java(),
        "go": _grpc_go(),
        "node": _grpc_node(),
        "rust": _grpc_rust(),
        "python": _grpc_python(),
    }


def grpc_member_command() -> Sequence[str]:
    """Return the command line of GrpcMember.java, a push consumer of one topic."""
    return _grpc_java_command("GrpcMember")


def _grpc_java() -> Client:
    return Client(f"Java {JAVA_GRPC}", "java", _grpc_java_command("GrpcClient"))


def _grpc_java_command(main: str) -> Sequence[str]:
    _need("mvn", "Maven")
    _need("javac", "a JDK 17")
    library, classes = CACHE / f"lib-grpc-{JAVA_GRPC}", CACHE / f"classes-grpc-{JAVA_GRPC}"
    classes.mkdir(parents=True, exist_ok=True)
    home = HERE / "grpc" / "java"
    build(
        *("mvn", "-q", "-B", "-f", str(home / "pom.xml")),
        *("dependency:copy-dependencies", f"-DoutputDirectory={library}"),
        *("-DincludeScope=runtime", f"-Dclient.version={JAVA_GRPC}"),
    )
    source = str(home / f"{main}.java")
    build("javac", "-nowarn", "-cp", f"{library}/*", "-d", str(classes), source)
    return (*java(f"{classes}:{library}/*"), main)


def _grpc_go() -> Client:
    _need("go", "Go")
    program = CACHE / "go-grpc-client"
    directory = HERE / "grpc" / "go"
    build("go", "build", "-buildvcs=false", "-o", str(program), ".", directory=directory)
    return Client("Go 5.1.4", "go", (str(program),))


def _grpc_node() -> Client:
    _need("npm", "Node 20")
    home = CACHE / "node-grpc"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", "client.js"):
        shutil.copy(HERE / "grpc" / "node" / name, home)
    build("npm", "ci", "--silent", "--no-audit", "--no-fund", directory=home)
    return Client("Node 1.0.8", "node", ("node", str(home / "client.js")))


def _grpc_rust() -> Client:
    _need("cargo", "Rust")
    target = CACHE / "rust-grpc-client"
    build(
        *("cargo", "build", "--quiet", "--locked", "--target-dir", str(target)),
        directory=HERE / "grpc" / "rust",
    )
    return Client("Rust 5.0.0", "rust", (str(target / "debug" / "client"),))


def _grpc_python() -> Client:
    logs = f"HOME={CACHE / 'home'}"
    program = str(HERE / "grpc" / "python" / "client.py")
    return Client("Python 5.1.2", "python", ("env", logs, sys.executable, program))


def java(class_path: str, heap: str = "256m") -> Sequence[str]:
    """Return the command line of Java."""
    # Its log files and offsets belong below the cache, not into the home directory.
    home = f"-Duser.home={CACHE / 'home'}"
    return (
        "java",
        f"-Xmx{heap}",
        "-XX:TieredStopAtLevel=1",
        "-Dfile.encoding=UTF-8",
        home,
        "-cp",
        class_path,
    )


def _need(program: str, what: str) -> None:
    if shutil.which(program) is None:
        raise RuntimeError(f"the interop tests need {what} ({program}) on the PATH")


def build(*command: str, directory: Path = ROOT) -> None:
    """Run a build command."""
    subprocess.run(command, check=True, cwd=directory, timeout=BUILD_SECONDS)
