"""Confirmation before operations that cannot be undone."""

from __future__ import annotations

import sys

import typer

from kourou.errors import UsageError


def confirm(question: str, danger: str, *, yes: bool) -> None:
    """Return if the user confirms at the terminal, or has confirmed by `--yes`.

    Args:
        question: question at the terminal, without its question mark.
        danger: effect of the operation, for the error text without a terminal.
        yes: whether `--yes` is given.

    Raises:
        UsageError: stdin is not a terminal, and `--yes` is missing.
        typer.Abort: the answer was no; the command ends with exit code 1.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{danger}: add --yes to confirm")
    typer.confirm(f"{question}?", abort=True, err=True)
