"""Commands that find no name server at the given address name it, with the remedy."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from kourou.testing.process import run_command

pytestmark = pytest.mark.slow

Behaviour = Callable[[socket.socket], None]


def serve(listener: socket.socket, behave: Behaviour) -> None:
    """Apply `behave` to each connection until the listener is shut down; then close them all."""
    accepted = []
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            break
        accepted.append(connection)
        behave(connection)
    for connection in accepted:
        connection.close()


@pytest.mark.parametrize(
    ("behave", "reason", "remedy"),
    [
        (
            lambda _: None,
            "did not return the route of orders within",
            "use --timeout to wait longer",
        ),
        (
            lambda peer: peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            "the peer speaks HTTP",
            "",
        ),
        (lambda peer: peer.sendall(b"\xff" * 100), "exceeds the limit of 16777212 bytes", ""),
        (lambda peer: peer.close(), "no name server answered", "correct the address"),
    ],
    ids=["silent", "http", "garbage", "hangs up"],
)
def test_an_address_without_a_name_server_is_named(
    behave: Behaviour, reason: str, remedy: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener, behave))
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        outcome = run_command("send", "orders", "x", "-n", address, "--timeout", "1")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()

    assert outcome.code == 3
    assert address in outcome.err
    assert reason in outcome.err
    assert remedy in outcome.err
    assert "Traceback" not in outcome.err
