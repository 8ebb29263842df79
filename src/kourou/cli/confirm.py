"""The question before what cannot be undone."""

from __future__ import annotations

import sys

import typer

from kourou.errors import UsageError


def confirm(question: str, danger: str, *, yes: bool) -> None:
    """Return if the person at the terminal agrees, or has said so by `--yes`.

    Args:
        question: asked at a terminal, without its question mark.
        danger: what is said where nobody can be asked.
        yes: the option.

    Raises:
        UsageError: nobody can be asked.
        typer.Abort: the answer was no; the command ends with exit code 1.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{danger}: give --yes to say so")
    typer.confirm(f"{question}?", abort=True, err=True)
