"""The options that several commands share, each with one name, default and help text."""

from __future__ import annotations

from typing import Annotated, Final

import typer

NAMESRV_DEFAULT: Final = "127.0.0.1:9876"
TIMEOUT_DEFAULT_S: Final = 5.0
"""mqadmin's."""
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The group that every broker has for tools that read without consuming, as mqadmin."""

Namesrv = Annotated[
    str,
    typer.Option(
        "--namesrv",
        "-n",
        metavar="HOST:PORT",
        envvar=["KOUROU_NAMESRV", "NAMESRV_ADDR"],
        help="The name servers to ask, separated by ';'.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long to wait for an answer."),
]
