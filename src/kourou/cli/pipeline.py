"""`kourou pipeline`: tables of rates, spans, lags and dead letters, computed by Spark."""

from __future__ import annotations

import typer

from kourou.cli import pipeline_audit, pipeline_copies, pipeline_measures, pipeline_sends

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Compute tables from topics with Spark: rates, traces, lags, dead letters.",
)
app.add_typer(pipeline_measures.app)
app.add_typer(pipeline_copies.app)
app.add_typer(pipeline_audit.app)
app.add_typer(pipeline_sends.app)
