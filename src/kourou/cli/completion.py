"""`kourou completion`: scripts for shell completion of commands, options and topic names."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from kourou.cli.output import print_line

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class Shell(Enum):
    """The supported shells."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


HELP: Final = """\
Print the script with which SHELL completes kourou's commands, options and topics.

`kourou --install-completion` installs the script for your shell. This command prints it for manual
installation.

\b
Examples:
  kourou completion bash > ~/.local/share/bash-completion/completions/kourou
  kourou completion zsh > ~/.zfunc/_kourou         with ~/.zfunc in fpath, before compinit
  kourou completion fish > ~/.config/fish/completions/kourou.fish
  eval "$(kourou completion bash)"                 this terminal only
"""


@app.command(help=HELP)
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", show_default=False)],
) -> None:
    """Print the script."""
    script = get_completion_script(
        prog_name="kourou", complete_var="_KOUROU_COMPLETE", shell=shell.value
    )
    print_line(script.strip())
