"""Tests of shell completion of commands, options and topics."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest

from kourou.cli.options import groups_to_complete, settings_to_complete, topics_to_complete
from kourou.model.topic import is_system_group
from kourou.testing.process import Outcome, Serving, run_command

Command = Callable[..., Outcome]


class Context:
    def __init__(self, **params: object) -> None:
        self.params = params


def completed(*words: str, **environ: str) -> list[str]:
    """Return bash's completions of the last word."""
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
def test_completion_prints_a_script_for_each_shell(command: Command, shell: str) -> None:
    script = command("completion", shell).out

    assert f"complete_{shell}" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_unknown_shell_is_refused(command: Command) -> None:
    refused = command("completion", "tcsh")

    assert refused.code == 2
    assert "'bash', 'zsh', 'fish'" in refused.err


@pytest.mark.slow
def test_subcommands_and_their_options_are_completed() -> None:
    assert completed("to") == ["topic"]
    assert completed("topic", "de") == ["describe", "delete"]
    assert completed("namesrv", "kv", "") == ["get", "list", "put", "delete"]
    assert "--write-queues" in completed("topic", "update", "orders", "--w")


@pytest.mark.slow
def test_topics_are_completed_from_the_name_server(kourou: Command, serving: Serving) -> None:
    kourou("topic", "create", "c-orders")

    asked = ("topic", "describe", "c-or")
    assert completed(*asked, KOUROU_NAMESRV=serving.namesrv) == ["c-orders"]


@pytest.mark.slow
def test_system_topics_are_completed_only_without_another_match(
    kourou: Command, serving: Serving
) -> None:
    kourou("topic", "create", "c-mine")
    context = Context(namesrv=serving.namesrv)

    offered = topics_to_complete(context, "")
    assert "c-mine" in offered
    assert not {"broker-a", "DefaultCluster", "TBW102"} & set(offered)
    assert topics_to_complete(context, "TBW") == ["TBW102"]


@pytest.mark.slow
def test_groups_and_brokers_are_completed_from_the_cluster(
    kourou: Command, serving: Serving
) -> None:
    kourou("group", "create", "c-billing")
    namesrv = {"KOUROU_NAMESRV": serving.namesrv}

    assert completed("group", "describe", "c-bi", **namesrv) == ["c-billing"]
    assert completed("dlq", "list", "c-bi", **namesrv) == ["c-billing"]
    assert completed("receive", "T", "--group", "c-bi", **namesrv) == ["c-billing"]
    assert completed("broker", "status", "bro", **namesrv) == ["broker-a"]
    assert completed("topic", "create", "T", "--broker", "bro", **namesrv) == ["broker-a"]
    context = Context(namesrv=serving.namesrv)
    assert "c-billing" in groups_to_complete(context, "")
    assert not [name for name in groups_to_complete(context, "") if is_system_group(name)]


def test_live_settings_are_completed_with_their_values() -> None:
    assert settings_to_complete("longPollingE") == ["longPollingEnable="]
    assert settings_to_complete("longPollingEnable=t") == ["longPollingEnable=true"]
    assert settings_to_complete("defaultMessageRequestMode=P") == [
        "defaultMessageRequestMode=PULL",
        "defaultMessageRequestMode=POP",
    ]
    assert settings_to_complete("maxMessageSize=") == []
    assert settings_to_complete("listenPo") == []  # not a live setting
    assert settings_to_complete("noSuchSetting=") == []


def test_completion_is_empty_without_a_name_server() -> None:
    assert topics_to_complete(Context(namesrv="127.0.0.1:9"), "a") == []
