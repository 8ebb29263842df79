"""Options that all pipelines share, and the run of a pipeline: its session, output and errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, get_type_hints

import typer

from kourou.cli import output
from kourou.cli.exits import TRACEBACK_VARIABLE, one_line, print_stderr
from kourou.cli.options import (
    AsJson,
    Namesrv,
    topics_to_complete,
)
from kourou.cli.start_time import Start, parse_span
from kourou.clock import SystemClock, elapsed_s
from kourou.errors import PackageMissingError, UsageError
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.topic import check_topic

if TYPE_CHECKING:
    from kourou.pipelines.report import Report
    from kourou.pipelines.selection import Selection
    from kourou.pipelines.tables import Tables

Topics = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC...", show_default=False, autocompletion=topics_to_complete),
]
Rows = Annotated[int, typer.Option("--rows", metavar="N", min=1, help="Print at most N rows.")]
Out = Annotated[
    str | None,
    typer.Option("--out", metavar="DIR", help="Write the tables as Parquet, each below DIR."),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the tables of an earlier run.")
]
Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE.html", help="Write charts as an HTML page.")
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Print Spark's plan of each table, and read nothing.")
]
Cores = Annotated[
    int, typer.Option("--cores", metavar="N", min=1, help="The number of tasks at once.")
]
ByClock = Annotated[
    str,
    typer.Option(
        "--clock",
        metavar="store|born",
        help="The clock of the broker, or that of producers.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The values of the options that all pipelines share."""

    rows: int
    out: str | None
    overwrite: bool
    plot: Path | None
    explain: bool
    cores: int
    namesrv: str
    as_json: bool


def shared_options(
    *,
    rows: Rows = 20,
    out: Out = None,
    overwrite: Overwrite = False,
    plot: Plot = None,
    explain: Explain = False,
    cores: Cores = 2,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    as_json: AsJson = False,
) -> Settings:
    """Return the values; the parameters declare the options of all pipelines.

    Raises:
        PackageMissingError: PySpark is not installed.
        UsageError: `--plot` names no page, or one in a directory that does not exist.
    """
    if find_spec("pyspark") is None:
        raise PackageMissingError("kourou pipeline", "pyspark", "spark,java")
    if plot is not None and plot.suffix not in (".html", ".htm"):
        raise UsageError(f"--plot {plot} is not a page: name a file FILE.html")
    if plot is not None and not plot.parent.is_dir():
        raise UsageError(f"--plot {plot}: the directory {plot.parent} does not exist; create it")
    return Settings(
        rows=rows,
        out=out,
        overwrite=overwrite,
        plot=plot,
        explain=explain,
        cores=cores,
        namesrv=namesrv,
        as_json=as_json,
    )


def with_shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `settings` of a command by the options of `shared_options`."""
    shared = _parameters(shared_options)
    own = [one for one in _parameters(command) if one.name != "settings"]

    @wraps(command)
    def run(**values: Any) -> None:  # noqa: ANN401
        settings = shared_options(**{one.name: values.pop(one.name) for one in shared})
        command(**values, settings=settings)

    del run.__wrapped__  # typer would read its signature
    run.__signature__ = Signature([*own, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in [*own, *shared]}
    return run


def _parameters(function: Callable[..., object]) -> list[Parameter]:
    """Return the parameters with their annotations evaluated."""
    hints = get_type_hints(function, include_extras=True)
    return [
        one.replace(annotation=hints[one.name]) for one in signature(function).parameters.values()
    ]


class Pipeline(Protocol):
    """A module of `kourou.pipelines`."""

    def tables(self, spark: Any, options: Any, output: Tables, /) -> object:  # noqa: ANN401
        """Build the tables."""

    def run(self, spark: Any, options: Any, output: Tables | None = None, /) -> Report:  # noqa: ANN401
        """Compute the tables and return the report."""


def run_pipeline(pipeline: Pipeline, options: object, settings: Settings) -> Report | None:
    """Run a pipeline, or explain it, in a session of its own, and print the result.

    Returns:
        The report; None if the pipeline was only explained.

    Raises:
        KourouError: the pipeline failed; the log of Spark's processes is kept and named.
    """
    # Only here, because the import of PySpark takes half a second.
    from kourou.pipelines.jobs import (  # noqa: PLC0415
        new_log_file,
        spark_session,
        translated_errors,
    )
    from kourou.pipelines.tables import Plans, Tables  # noqa: PLC0415

    log_file = None if os.environ.get(TRACEBACK_VARIABLE) else new_log_file()
    begun_s = elapsed_s()
    name = getattr(pipeline, "__name__", "").rpartition(".")[2].replace("_", "-")
    try:
        with (
            spark_session(f"kourou {name}", settings.cores, log_file=log_file) as spark,
            translated_errors(),
        ):
            if settings.explain:
                plans = Plans()
                pipeline.tables(spark, options, plans)
                _print_plans(dict(plans.texts()), as_json=settings.as_json)
                report = None
            else:
                tables = Tables(settings.out, overwrite=settings.overwrite)
                report = pipeline.run(spark, options, tables)
    except BaseException as error:
        if log_file is not None and log_file.stat().st_size and not isinstance(error, UsageError):
            print_stderr(f"the log of Spark's processes is {log_file}")
        elif log_file is not None:
            log_file.unlink()
        raise
    if log_file is not None:
        log_file.unlink()
    if report is not None:
        _print_report(name, report, elapsed_s() - begun_s, settings)
    return report


def _print_plans(texts: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        output.print_json(texts)
        return
    for name, text in texts.items():
        output.print_line(f"Table {name}:\n{text}\n")


def _print_report(name: str, report: Report, seconds: float, settings: Settings) -> None:
    from kourou.pipelines.charts import page  # noqa: PLC0415
    from kourou.pipelines.report import words  # noqa: PLC0415

    counts = ", ".join(
        f"{value:,} {metric.replace('_', ' ')}" for metric, value in report.metrics.items()
    )
    if settings.plot is not None:
        text = page(f"Pipeline {name}", report.charts, [counts, *report.notes])
        settings.plot.write_text(text, encoding="utf-8")
    if settings.as_json:
        output.print_json(
            {
                "tables": {table.name: table.documents() for table in report.tables},
                "metrics": {**report.metrics, "seconds": round(seconds, 3)},
                "notes": list(report.notes),
                "out": settings.out,
                "plot": None if settings.plot is None else str(settings.plot),
            }
        )
        return
    for table in report.tables:
        output.print_table(
            [words(column).upper() for column in table.columns],
            [list(map(_cell, row)) for row in table.rows],
        )
        if table.total > len(table.rows):
            left = output.counted(table.total - len(table.rows), "more row")
            print_stderr(f"{left}: use --rows {table.total}, or --out for all columns")
        output.print_line("")
    output.print_line(f"{counts}; {seconds:.1f} s")
    for note in report.notes:
        print_stderr(note)
    if settings.out is not None:
        output.print_line(f"Parquet: {settings.out}")
    if settings.plot is not None:
        output.print_line(f"Charts: {settings.plot}")


def _cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list | tuple):
        return " ".join(one_line(str(one)) for one in value)
    if hasattr(value, "strftime"):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return value


def select(namesrv: str, topics: Sequence[str], start: str, end: str, tags: str = "*") -> Selection:
    """Return the selection of topics in a span of time.

    Raises:
        UsageError: a topic or a time is not valid.
    """
    from kourou.pipelines.selection import Selection  # noqa: PLC0415

    for topic in topics:
        check_topic(topic)
    begin, until_ms = parse_span(start, end, SystemClock().now_ms())
    since_ms = None if isinstance(begin, Start) else begin
    return Selection(
        name_server=namesrv, topics=tuple(topics), since_ms=since_ms, until_ms=until_ms, tags=tags
    )


def event_time(clock: str) -> Any:  # noqa: ANN401
    """Return the member of `EventTime` that `--clock` names."""
    from kourou.pipelines.event_time import EventTime  # noqa: PLC0415

    try:
        return EventTime(clock)
    except ValueError:
        raise UsageError(f"--clock {clock!r} is unknown: use store or born") from None
