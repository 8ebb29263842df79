"""The programs of docs/clients.md work as they are printed there; `tests/proxy` runs Python's."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kourou.blocking import AdminClient
from kourou.testing.process import Serving
from tests.interop.clients import CACHE, HERE, JAVA_GRPC, ROOT, Client, build

PAGE = ROOT / "docs" / "clients.md"
LIMIT_S = 60


def java_program(source: str, directory: Path) -> Sequence[str]:
    file, library = directory / "Orders.java", CACHE / f"lib-grpc-{JAVA_GRPC}"
    file.write_text(source)
    return ("java", "-cp", f"{library}/*", str(file))


def go_program(source: str, directory: Path) -> Sequence[str]:
    for name in ("go.mod", "go.sum"):
        shutil.copy(HERE / "grpc" / "go" / name, directory)
    (directory / "main.go").write_text(source)
    build("go", "build", "-buildvcs=false", "-o", "orders", ".", directory=directory)
    return (str(directory / "orders"),)


def node_program(source: str, _: Path) -> Sequence[str]:
    program = CACHE / "node-grpc" / "orders.mjs"  # beside the client
    program.write_text(source)
    return ("node", str(program))


def rust_program(source: str, directory: Path) -> Sequence[str]:
    """Build the program with the dependencies that the client's other program has."""
    for name in ("Cargo.toml", "Cargo.lock"):
        text = (HERE / "grpc" / "rust" / name).read_text()
        (directory / name).write_text(text.replace('name = "client"', 'name = "orders"'))
    (directory / "src").mkdir()
    (directory / "src" / "main.rs").write_text(source)
    target = CACHE / "rust-grpc-client"
    build("cargo", "build", "-q", "--locked", "--target-dir", str(target), directory=directory)
    return (str(target / "debug" / "orders"),)


PROGRAMS: dict[str, Callable[[str, Path], Sequence[str]]] = {
    "java": java_program,
    "go": go_program,
    "js": node_program,
    "rust": rust_program,
}


@pytest.mark.parametrize("language", PROGRAMS)
def test_program_of_the_page_sends_and_receives(
    language: str, programs: dict[str, Client], tmp_path: Path
) -> None:
    [source] = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    with Serving.start(tmp_path / "store", "--no-console", grpc=True) as serving:
        with AdminClient(serving.namesrv) as admin:
            admin.create_topic("orders")
        command = PROGRAMS[language](source.replace("localhost:8081", serving.grpc), tmp_path)
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=CACHE
        )
    assert ended.returncode == 0, ended.stderr
    assert "received 17\n" in ended.stdout
