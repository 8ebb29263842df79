"""grpcurl, which learns the services by reflection, with `kourou serve`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kourou.testing.process import Serving, run_command
from tests.interop.clients import grpcurl

SERVICE = "apache.rocketmq.v2.MessagingService"
HEADERS = ("-H", "x-mq-client-id: grpcurl@1", "-H", "x-mq-language: GO")


@pytest.fixture(scope="module")
def program() -> Sequence[str]:
    return grpcurl()


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    store: Path = tmp_path_factory.mktemp("grpcurl") / "store"
    with Serving.start(store, "--no-console", grpc=True) as serving:
        created = run_command("topic", "create", "orders", "--namesrv", serving.namesrv)
        assert created.code == 0, created.err
        yield serving


def output(program: Sequence[str], serving: Serving, *arguments: str) -> str:
    """Return what grpcurl prints; `arguments` has "at" in the place of the address."""
    words = [str(serving.ready["grpc"]) if word == "at" else word for word in arguments]
    done = subprocess.run(
        (*program, *words), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("way", ["-plaintext", "-insecure"])
def test_services_are_listed(way: str, program: Sequence[str], serving: Serving) -> None:
    listed = output(program, serving, way, "at", "list").split()
    assert listed == [
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ]


def test_proxy_is_healthy(program: Sequence[str], serving: Serving) -> None:
    text = output(program, serving, "-plaintext", "at", "grpc.health.v1.Health/Check")
    assert json.loads(text) == {"status": "SERVING"}


def test_messages_are_described(program: Sequence[str], serving: Serving) -> None:
    text = output(program, serving, "-plaintext", "at", "describe", ".apache.rocketmq.v2.Message")
    assert "SystemProperties system_properties = 3;" in text


def test_calls_are_answered(program: Sequence[str], serving: Serving) -> None:
    asked = json.dumps({"topic": {"name": "orders"}})
    path = f"{SERVICE}/QueryRoute"
    text = output(program, serving, "-plaintext", *HEADERS, "-d", asked, "at", path)
    answer: dict[str, Any] = json.loads(text)
    assert answer["status"] == {"code": "OK", "message": "OK"}
    assert answer["messageQueues"][0]["acceptMessageTypes"] == ["NORMAL"]
