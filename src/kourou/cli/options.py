"""The options that several commands share, each with one name, default and help text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from kourou.errors import KourouError, UsageError
from kourou.model.host import NAMESRV_DEFAULT, NAMESRV_VARIABLES

CONSOLE_PORT: Final = 5557
"""Of /metrics, /healthz and /readyz, as RocketMQ's exporter."""
TIMEOUT_DEFAULT_S: Final = 5.0
"""mqadmin's."""
COMPLETION_TIMEOUT_S: Final = 1.0
"""For names that a shell completes: who types does not wait longer."""

Namesrv = Annotated[
    str,
    typer.Option(
        "--namesrv",
        "-n",
        metavar="HOST:PORT",
        envvar=list(NAMESRV_VARIABLES),
        help="The name servers to ask, separated by ';'.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long to wait for an answer."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def topics_to_complete(
    ctx: Any,  # noqa: ANN401  # click's context, which typer holds inside itself
    incomplete: str,
) -> list[str]:
    """Return the topics that begin so, for a shell; none if no name server says."""
    from kourou.cli.admin_session import AdminSession  # noqa: PLC0415  # only this needs a client

    namesrv = ctx.params.get("namesrv") or NAMESRV_DEFAULT
    try:
        topics = AdminSession(namesrv, COMPLETION_TIMEOUT_S).ask(lambda admin: admin.topic_list())
    except KourouError:
        return []
    return [topic for topic in topics if topic.startswith(incomplete)]


TopicName = Annotated[
    str,
    typer.Argument(metavar="TOPIC", show_default=False, autocompletion=topics_to_complete),
]


def attribute_values(texts: Sequence[str] | None) -> dict[str, str]:
    """Return `--attribute NAME=VALUE` options as a mapping; mqadmin's `+` before a name is allowed.

    Raises:
        UsageError: as `key_values`.
    """
    values = key_values(texts or (), "--attribute")
    return {name.removeprefix("+"): value for name, value in values.items()}


def key_values(texts: Sequence[str], option: str) -> dict[str, str]:
    """Return the keys and values of texts `KEY=VALUE`.

    Raises:
        UsageError: one has no `=` or no key, or a key is there twice; the text names `option`.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} {text!r} is not KEY=VALUE")
        if key in pairs:
            raise UsageError(f"{option} gives {key} twice")
        pairs[key] = value
    return pairs
