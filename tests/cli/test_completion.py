"""A shell completes commands, options and the topics that there are."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest

from kourou.cli.options import topics_to_complete
from kourou.testing.process import Outcome, Serving, run_command

Command = Callable[..., Outcome]


class Context:
    def __init__(self, **params: object) -> None:
        self.params = params


def completed(*words: str, **environ: str) -> list[str]:
    """Return what bash would offer for the last word."""
    done = run_command(
        environ={
            "_KOUROU_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("kourou", *words)),
            "COMP_CWORD": str(len(words)),
            **environ,
        },
    )
    return done.out.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(command: Command, shell: str) -> None:
    script = command("completion", shell).out

    assert f"complete_{shell}" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_another_shell_is_refused(command: Command) -> None:
    refused = command("completion", "tcsh")

    assert refused.code == 2
    assert "'bash', 'zsh', 'fish'" in refused.err


@pytest.mark.slow
def test_commands_and_options_are_completed_below_the_root_too() -> None:
    assert completed("to") == ["topic"]
    assert completed("topic", "de") == ["describe", "delete"]
    assert completed("namesrv", "kv", "") == ["get", "list", "put", "delete"]
    assert "--write-queues" in completed("topic", "update", "orders", "--w")


@pytest.mark.slow
def test_topics_are_completed_from_the_name_server(kourou: Command, serving: Serving) -> None:
    kourou("topic", "create", "c-orders")

    asked = ("topic", "describe", "c-or")
    assert completed(*asked, KOUROU_NAMESRV=serving.namesrv) == ["c-orders"]


def test_without_a_name_server_nothing_is_completed() -> None:
    assert topics_to_complete(Context(namesrv="127.0.0.1:9"), "a") == []
