"""The entry point of the command `kourou`: one table of commands, each loaded when it is run.

A command that only reads should answer at once, so the root knows each command by name and one
line, and imports its module (and with it the client, the broker or the store) only to run it.
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from kourou import __version__, logs
from kourou.cli.exits import FAILED, USAGE, exit_code_of, report, say_json
from kourou.errors import InternalError
from kourou.logs import Level

PANELS: Final = {
    "Start here": {
        "serve": "Run a name server and a broker in this process.",
        "send": "Send messages to a topic.",
        "receive": "Print a topic's messages, live or from a time.",
    },
    "Look and change": {
        "topic": "List, create, change, describe and delete topics.",
        "message": "Find single messages, and print those of a time.",
        "group": "List, create, describe, move and delete consumer groups.",
        "dlq": "See what a group could not consume, and send it again.",
        "producer": "List the producers that are connected.",
    },
    "Servers": {
        "cluster": "List brokers, how busy and how full they are.",
        "broker": "See how brokers are, read and change their settings.",
        "namesrv": "Configure name servers, and take brokers out of service.",
    },
    "Find out what is wrong": {
        "doctor": "Look for what is in the way, here and in the cluster, and what to do.",
        "health": "Tell whether name servers and brokers serve.",
        "stats": "Show how fast topics are written and consumed.",
        "store": "Look into a store directory, verify and mend it, take messages out and in.",
    },
    "This command line": {
        "completion": "Print what makes a shell complete commands and options.",
    },
}
"""What the root's help shows: titles -> commands -> one line of help."""

COMMANDS: Final = {name: line for panel in PANELS.values() for name, line in panel.items()}
"""Each command's line of help; its `app` lives in the module of its name."""


AS_JSON: Final = "kourou.as_json"
"""Key in the context's `meta`: whether the command is asked for JSON."""


class CommandTable(TyperGroup):
    """The root command: loads a command to run it, and turns its errors into text and exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        words = args[: args.index("--")] if "--" in args else args
        ctx.meta[AS_JSON] = "--json" in words
        return super().parse_args(ctx, args)

    def resolve_command(  # the types of click, which typer holds inside itself
        self,
        ctx: Any,  # noqa: ANN401
        args: list[str],
    ) -> Any:  # noqa: ANN401
        name, _, rest = super().resolve_command(ctx, args)
        if name is None:
            return None, None, rest
        return name, get_command(import_module(f"kourou.cli.{name}").app), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002
        """Write the commands in panels, for people who look for one."""
        width = max(map(len, COMMANDS))
        for title, commands in PANELS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in commands.items()])

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        # Errors are said by exit code and text; entries of the client would only repeat them.
        logs.configure(Level.ERROR)
        try:
            return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            # The edge of the program: what has an exit code of its own becomes one line of text.
            code = exit_code_of(error)
            if code is not None:
                report(error, as_json=ctx.meta[AS_JSON])
                raise typer.Exit(code) from error
            if not ctx.meta[AS_JSON] or not hasattr(error, "format_message"):
                raise
            # The command line itself does not parse: what typer would print as text.
            say_json(error.format_message(), "UsageError", USAGE)
            raise typer.Exit(USAGE) from error


EPILOG: Final = """\
Commands ask the name server at 127.0.0.1:9876; --namesrv or KOUROU_NAMESRV name another. --json
prints for programs, errors too, on stderr. Times are spans before now (-90s, -15m, -1h, -2d), ISO
8601 or epoch ms.
KOUROU_TLS_ENABLE=true speaks TLS, with KOUROU_TLS_TRUST_CERT_PATH, KOUROU_TLS_CERT_PATH and so on.
KOUROU_NAMESPACE=shop puts topics and groups into that namespace.

\b
Exit codes:
  0    done
  1    failed, refused, or found something wrong
  2    wrong usage: an option, a name, a setting
  3    no server reached, or none started
  130  interrupted by Ctrl-C or SIGTERM
"""

app = typer.Typer(
    cls=CommandTable,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kourou {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Kourou: messages by Apache RocketMQ's protocols, in Python.

    New here? In one terminal, then in another:

    \b
      kourou serve                              a name server and a broker
      kourou send hello "first message"
      kourou receive hello --from earliest

    Each command has help and examples of its own: kourou send --help
    """  # noqa: D301  # \b keeps click from joining the lines


def _loaded_when_run() -> None:
    """Stand for a command in the table; `CommandTable` runs the real one."""


for _name, _help in COMMANDS.items():
    app.command(_name, help=_help)(_loaded_when_run)


def main() -> None:
    """Run the command line, and exit with its code."""
    # Text out of other people's messages must never end the program: escape what does not encode.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # A service manager ends a command as Ctrl-C does: a member of a group commits what it printed.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        app(prog_name="kourou")
    except Exception as error:  # noqa: BLE001  # the edge: a bug is reported, not shown as a traceback
        bug = InternalError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
        report(bug, as_json="--json" in sys.argv)
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
