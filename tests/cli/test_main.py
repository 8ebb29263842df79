"""Tests of the root command: imports, help, suggestions, and internal errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from kourou import __version__
from kourou.cli import main
from kourou.testing.process import Outcome

Command = Callable[..., Outcome]


def test_version_is_printed(command: Command) -> None:
    assert command("--version").out == f"kourou {__version__}\n"


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_help_names_every_command(command: Command, args: tuple[str, ...]) -> None:
    outcome = command(*args)
    text = outcome.out + outcome.err

    assert all(f"  {name} " in text for name in main.COMMANDS)
    assert all(f"\n{title}:\n" in text for title in main.PANELS)
    assert "Exit codes:\n    0    done\n" in text


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_has_help_with_an_example(command: Command, name: str) -> None:
    outcome = command(name, "--help")
    shown = outcome.out
    if "COMMAND [ARGS]" in shown:
        inner = [line.split()[0] for line in shown.partition("Commands:\n")[2].splitlines()]
        shown = "".join(command(name, word, "--help").out for word in inner)

    assert outcome.code == 0
    assert f"kourou {name} " in shown.partition("Examples:")[2]


@pytest.mark.parametrize(
    ("args", "near"), [(("topc", "list"), "topic"), (("topic", "liste"), "list")]
)
def test_misspelt_command_gets_a_suggestion(
    command: Command, args: tuple[str, ...], near: str
) -> None:
    outcome = command(*args)

    assert outcome.code == 2
    assert f"Did you mean '{near}'?" in outcome.err


def test_misspelt_option_gets_a_suggestion(command: Command) -> None:
    outcome = command("topic", "create", "orders", "--queue", "4")

    assert outcome.code == 2
    assert "--queues" in outcome.err


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300"])
@pytest.mark.parametrize(
    "words",
    [
        ("topic", "list", "--timeout"),
        ("send", "orders", "paid", "--timeout"),
        ("receive", "orders", "--timeout"),
        ("cluster", "move", "broker-a", "--to", "10.0.0.7", "--wait"),
    ],
)
def test_times_that_are_no_numbers_are_refused_by_name(
    command: Command, words: tuple[str, ...], seconds: str
) -> None:
    outcome = command(*words, seconds)

    assert outcome.code == 2
    assert f"Invalid value for '{words[-1]}'" in outcome.err


def test_root_command_imports_only_what_every_command_needs() -> None:
    text = (
        "import sys, kourou.cli.main; "
        "print(*{'asyncio', 'msgspec', 'rich', 'kourou.client'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""


def test_internal_error_is_one_line_that_asks_for_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(**_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(main, "app", broken)
    with pytest.raises(SystemExit) as caught:
        main.main()

    error, remedy = capsys.readouterr().err.splitlines()
    assert caught.value.code == 1
    assert error == "Error: ZeroDivisionError: division by zero"
    assert "KOUROU_TRACEBACK=1" in remedy
