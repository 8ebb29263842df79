"""Entry point of the command `kourou`: a table of commands, whose modules are loaded on use.

To keep short commands fast, the root command holds only the name and one line of help of each
command. It imports a command's module (and with it the client, the broker or the store) to run it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from kourou import __version__, logs
from kourou.cli.exits import FAILED, USAGE, exit_code_of, print_json_error, report
from kourou.cli.interrupts import end_at_sigterm
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
        "message": "Find and show messages, print a time range, recall scheduled ones.",
        "group": "List, create, describe and delete consumer groups, reset offsets.",
        "dlq": "List, show and redrive the dead letters of a consumer group.",
        "producer": "List connected producers.",
    },
    "Servers": {
        "cluster": "Run a cluster on this machine; list brokers with their rates.",
        "broker": "Show the status of brokers, read and change their settings.",
        "namesrv": "Configure name servers, and take brokers out of service.",
        "controller": "Run a controller, which elects the masters of broker sets.",
    },
    "Diagnose": {
        "doctor": "Check this machine and the cluster for problems, with remedies.",
        "health": "Check whether name servers and brokers work.",
        "stats": "Show send and consume rates of topics and groups.",
        "pipeline": "Compute rates, traces, lags, dead letters with Spark.",
        "store": "Inspect, verify and repair a store directory, export and import messages.",
    },
    "This command line": {
        "completion": "Print a script for shell completion.",
    },
}
"""The panels in the help of the root command: title -> command -> one line of help."""

COMMANDS: Final = {name: line for panel in PANELS.values() for name, line in panel.items()}
"""The line of help of each command; its `app` is in the module of the same name."""


AS_JSON: Final = "kourou.as_json"
"""Key in the context's `meta`: whether the command has the option --json."""


class CommandTable(TyperGroup):
    """The root command: loads and runs a command, and converts errors to text and exit codes."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        words = args[: args.index("--")] if "--" in args else args
        ctx.meta[AS_JSON] = "--json" in words
        return super().parse_args(ctx, args)

    def resolve_command(  # untyped: typer contains its own copy of click
        self,
        ctx: Any,  # noqa: ANN401
        args: list[str],
    ) -> Any:  # noqa: ANN401
        name, _, rest = super().resolve_command(ctx, args)
        if name is None:
            return None, None, rest
        return name, get_command(import_module(f"kourou.cli.{name}").app), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002
        """Write the commands in panels."""
        width = max(map(len, COMMANDS))
        for title, commands in PANELS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in commands.items()])

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        # Errors are reported by text and exit code; log entries of the client would repeat them.
        logs.configure(Level.ERROR)
        try:
            return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            # The outermost handler: an error with an exit code becomes one line of text.
            code = exit_code_of(error)
            if code is not None:
                report(error, as_json=ctx.meta[AS_JSON])
                raise typer.Exit(code) from error
            if not ctx.meta[AS_JSON] or not hasattr(error, "format_message"):
                raise
            # A command line that does not parse; typer would print the error as text.
            print_json_error(error.format_message(), "UsageError", USAGE)
            raise typer.Exit(USAGE) from error


EPILOG: Final = """\
Commands connect to the name server at 127.0.0.1:9876, or that of --namesrv or KOUROU_NAMESRV.
--json prints JSON for programs, and errors as JSON on stderr. Times are spans before now (-90s,
-15m, -1h, -2d), ISO 8601 or epoch ms.
KOUROU_TLS_ENABLE=true uses TLS, with KOUROU_TLS_TRUST_CERT_PATH, KOUROU_TLS_CERT_PATH and so on.
KOUROU_NAMESPACE=shop selects the namespace of topics and groups.

\b
Exit codes:
  0    done
  1    failed, refused, or found a problem
  2    wrong usage: an option, a name, a setting
  3    no server answered, or the server did not start
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
    """Kourou: messaging with Apache RocketMQ's protocol, in Python.

    First steps, in two terminals:

    \b
      kourou serve                              a name server and a broker
      kourou send hello "first message"
      kourou receive hello --from earliest

    Each command has its own help and examples: kourou send --help
    """  # noqa: D301  # \b keeps click from joining the lines


def _loaded_when_run() -> None:
    """Placeholder for a command in the table; `CommandTable` runs the real one."""


for _name, _help in COMMANDS.items():
    app.command(_name, help=_help)(_loaded_when_run)


def main() -> None:
    """Run the command line, and exit with its code."""
    # Text from messages must never end the program: escape characters that cannot be encoded.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    end_at_sigterm()
    try:
        app(prog_name="kourou")
    except Exception as error:  # noqa: BLE001  # outermost handler: a bug is reported in one line
        bug = InternalError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
        report(bug, as_json="--json" in sys.argv)
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
