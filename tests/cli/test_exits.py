"""Tests of exit codes and error reports."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kourou import errors
from kourou.cli.exits import FAILED, INTERRUPTED, UNREACHABLE, USAGE, exit_code_of, one_line, report
from kourou.testing.process import Outcome


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidTopicError("x"), USAGE),
        (errors.ConfigError("x"), USAGE),
        (errors.AddressInUseError("127.0.0.1:9876"), UNREACHABLE),
        (errors.ConnectFailedError("x"), UNREACHABLE),
        (errors.ConnectionLostError("x"), UNREACHABLE),
        (errors.RequestTimeoutError("x"), UNREACHABLE),
        (errors.WaitEndedError("x"), UNREACHABLE),
        (errors.StoreLockedError("x"), UNREACHABLE),
        (errors.NoRouteError("x"), FAILED),
        (errors.TopicNotFoundError(17, "x"), FAILED),
        (errors.SystemBusyError(2, "x"), FAILED),
        (errors.InternalError("x"), FAILED),
        (KeyboardInterrupt(), INTERRUPTED),
        (ZeroDivisionError(), None),
    ],
)
def test_an_error_has_its_exit_code(error: BaseException, code: int | None) -> None:
    assert exit_code_of(error) == code


def test_error_before_the_timeout_determines_the_exit_code() -> None:
    error = errors.RequestTimeoutError("no answer within 0.001 s; the try before: closed")
    error.__cause__ = errors.NoRouteError("closed")
    assert exit_code_of(error) == FAILED


def every_error() -> list[type[errors.KourouError]]:
    found: list[type[errors.KourouError]] = []
    waiting: list[type[errors.KourouError]] = [errors.KourouError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting += kind.__subclasses__()
    return found


def test_every_kourou_error_has_an_exit_code() -> None:
    assert len(every_error()) > 40
    for kind in every_error():
        assert exit_code_of(kind.__new__(kind)) in (FAILED, USAGE, UNREACHABLE), kind


def test_report_is_one_line_and_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    report(errors.ConnectFailedError("no connection to 127.0.0.1:9876: refused"))

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "Error: no connection to 127.0.0.1:9876: refused\n"
        "  choose another server with --namesrv or KOUROU_NAMESRV\n"
    )


def test_remedy_for_controllers_without_a_leader_is_theirs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report(errors.NoLeaderError("no controller leads: 10.0.0.7:9878 knows no leader"))

    told = capsys.readouterr().err
    assert "while they reach etcd" in told
    assert "--namesrv" not in told


def test_json_report_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    report(errors.ConnectFailedError("refused"), as_json=True)
    report(errors.TopicNotFoundError(17, "no topic"), as_json=True)

    captured = capsys.readouterr()
    assert captured.out == ""
    assert [json.loads(line) for line in captured.err.splitlines()] == [
        {
            "error": "refused",
            "kind": "ConnectFailedError",
            "exit_code": 3,
            "remedy": "choose another server with --namesrv or KOUROU_NAMESRV",
            "code": None,
        },
        {
            "error": "no topic (code 17)",
            "kind": "TopicNotFoundError",
            "exit_code": 1,
            "remedy": None,
            "code": 17,
        },
    ]


JSON_COMMANDS = [
    ("send", "T", "x", "--timeout", "0.1"),
    ("topic", "list"),
    ("group", "list"),
    ("broker", "list"),
    ("cluster", "list"),
    ("message", "show", "x"),
    ("dlq", "list", "g"),
    ("namesrv", "kv", "get", "n", "k"),
    ("producer", "list"),
    ("stats",),
    ("topic", "describe", "a b"),
    ("topic", "describe"),
    ("topic", "list", "--no-such-option"),
]


@pytest.mark.parametrize("words", JSON_COMMANDS, ids=" ".join)
def test_errors_of_a_command_with_json_option_are_json(
    command: Callable[..., Outcome], words: tuple[str, ...]
) -> None:
    outcome = command(*words, "--json", environ={"KOUROU_NAMESRV": "127.0.0.1:1"})

    error = json.loads(outcome.err)
    assert outcome.code == error["exit_code"] > 0
    assert error["error"]
    assert outcome.out == ""


def test_body_named_json_is_not_an_option(command: Callable[..., Outcome]) -> None:
    environ = {"KOUROU_NAMESRV": "127.0.0.1:1"}
    outcome = command("send", "T", "--timeout", "0.1", "--", "--json", environ=environ)
    assert outcome.err.startswith("Error: ")


def test_error_before_the_timeout_determines_the_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = errors.RequestTimeoutError("no route within 0.001 s; the try before: refused")
    error.__cause__ = errors.ConnectFailedError("refused")
    report(error)

    assert capsys.readouterr().err.endswith(
        "choose another server with --namesrv or KOUROU_NAMESRV\n"
    )


def test_remark_of_a_peer_stays_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    report(errors.RemoteError(1, "java.lang.Exception: x\n\tat Foo\x1b[2J"))

    assert capsys.readouterr().err == (
        "Error: java.lang.Exception: x\\n\\tat Foo\\x1b[2J (code 1)\n"
    )


def test_traceback_is_printed_if_the_variable_is_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOUROU_TRACEBACK", "1")
    report(errors.InternalError("x"))

    assert "InternalError: x" in capsys.readouterr().err.splitlines()[-1]


def test_one_line_keeps_printable_characters() -> None:
    assert one_line("Köln 日本 — ok") == "Köln 日本 — ok"


def test_error_for_a_group_without_members_suggests_the_group_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report(errors.ConsumerNotOnlineError(206, "group biling has no live member"))
    assert "kourou group list" in capsys.readouterr().err
