"""`kourou completion`: what makes a shell complete commands, options and names of topics."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from kourou.cli.output import print_line

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class Shell(Enum):
    """The shells that can be served."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


HELP: Final = """\
Print the script that makes SHELL complete kourou's commands, options and topics.

`kourou --install-completion` writes it where your shell looks for it; this is for those who would
rather do so themselves.

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
