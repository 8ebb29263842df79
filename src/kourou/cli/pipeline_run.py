"""Options that all pipelines share, and the run of a pipeline: its session, output and errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from importlib.util import find_spec
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, get_type_hints

import typer

from kourou.cli import output
from kourou.cli.exits import TRACEBACK_VARIABLE, one_line, print_stderr
from kourou.cli.interrupts import unblock
from kourou.cli.options import (
    AsJson,
    Namesrv,
    topics_to_complete,
)
from kourou.cli.start_time import Start, parse_span
from kourou.cli.transport import client_namespace, client_tls
from kourou.client.consuming.membership.subscriptions import subscription_of
from kourou.clock import SystemClock, elapsed_s
from kourou.errors import FilterSyntaxError, PackageMissingError, UsageError
from kourou.model.host import NAMESRV_DEFAULT
from kourou.model.instants import parse_duration
from kourou.model.topic import check_topic
from kourou.remoting.tls import TlsClientConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kourou.pipelines.report import Report, Table
    from kourou.pipelines.selection import Selection
    from kourou.pipelines.streams import QuerySink, Streaming
    from kourou.pipelines.tables import Tables

EVERY_MS: Final = 10_000
"""Default interval of the batches of a stream: each batch writes files of its own."""

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
Follow = Annotated[bool, typer.Option("--follow", help="Run as a stream, until Ctrl-C.")]
New = Annotated[
    bool,
    typer.Option("--new", help="Run as a stream, on what came since the last run."),
]
Every = Annotated[
    str | None,
    typer.Option(
        "--every",
        metavar="SPAN",
        help="With --follow: interval of the batches. [default: 10s; archives 1m]",
    ),
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
class StreamMode:
    """The values of the options of a pipeline that runs as a stream.

    Attributes:
        every_ms: None: the default of the pipeline.
    """

    follow: bool
    every_ms: int | None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The values of the options that all pipelines share.

    Attributes:
        stream: None: the pipeline runs as a batch job.
    """

    rows: int
    out: str | None
    overwrite: bool
    plot: Path | None
    explain: bool
    cores: int
    namesrv: str
    as_json: bool
    stream: StreamMode | None = None


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
        UsageError: `--out` is blank, or `--plot` names no page, or one in a directory that does
            not exist.
    """
    check_directory(out, "--out")
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


def check_directory(directory: str | None, option: str) -> None:
    """Refuse a blank name, which a variable that is not set leaves: it means here.

    Raises:
        UsageError: it is blank.
    """
    if directory is not None and not directory.strip():
        raise UsageError(f"{option} is blank: name a directory, such as ./{option.strip('-')}")


def stream_options(
    *, follow: Follow = False, new: New = False, every: Every = None
) -> StreamMode | None:
    """Return the values, None for a batch job; the parameters declare the options of streams.

    Raises:
        UsageError: the options exclude each other.
    """
    if follow and new:
        raise UsageError("--follow and --new are given: --follow also reads what is new; omit one")
    if every is not None and not follow:
        raise UsageError("--every is given without --follow: add it, or omit --every")
    if not (follow or new):
        return None
    every_ms = None if every is None else parse_duration(every, "--every")
    return StreamMode(follow=follow, every_ms=every_ms)


def with_shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `settings` of a command by the options of `shared_options`."""
    return _with_options(command, None)


def with_stream_options(command: Callable[..., None]) -> Callable[..., None]:
    """As `with_shared_options`, with the options of `stream_options` too."""
    return _with_options(command, stream_options)


def _with_options(
    command: Callable[..., None], stream: Callable[..., StreamMode | None] | None
) -> Callable[..., None]:
    shared = _parameters(shared_options)
    streamed = [] if stream is None else _parameters(stream)
    own = [one for one in _parameters(command) if one.name != "settings"]

    @wraps(command)
    def run(**values: Any) -> None:  # noqa: ANN401
        settings = shared_options(**{one.name: values.pop(one.name) for one in shared})
        if stream is not None:
            mode = stream(**{one.name: values.pop(one.name) for one in streamed})
            settings = replace(settings, stream=mode)
        command(**values, settings=settings)

    declared = [*own, *streamed, *shared]
    del run.__wrapped__  # typer would read its signature
    run.__signature__ = Signature(declared)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in declared}
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


class StreamingPipeline(Pipeline, Protocol):
    """A module of `kourou.pipelines` that also runs as a stream."""

    def queries(self, spark: Any, options: Any, sink: QuerySink, /) -> None:  # noqa: ANN401
        """Add the streaming queries."""

    def check(self, options: Any, streaming: Streaming, /) -> None:  # noqa: ANN401
        """Refuse before Spark starts what `stream` would refuse."""

    def stream(self, spark: Any, options: Any, streaming: Streaming, /) -> Report:  # noqa: ANN401
        """Run the queries and return the report."""


def run_pipeline(pipeline: Pipeline, options: object, settings: Settings) -> Report | None:
    """Run a pipeline, or explain it, in a session of its own, and print the result.

    Returns:
        The report; None if the pipeline was only explained.

    Raises:
        KourouError: the pipeline failed; the log of Spark's processes is kept and named.
    """
    from kourou.pipelines.tables import Plans, Tables  # noqa: PLC0415

    def explain(spark: SparkSession) -> dict[str, str]:
        plans = Plans()
        pipeline.tables(spark, options, plans)
        return dict(plans.texts())

    def run(spark: SparkSession) -> Report:
        tables = Tables(settings.out, overwrite=settings.overwrite)
        return pipeline.run(spark, options, tables)

    return _run(pipeline, settings, explain, run)


def run_stream_or_batch(
    pipeline: StreamingPipeline,
    options: object,
    settings: Settings,
    *,
    every_ms: int = EVERY_MS,
    has_out: bool = True,
) -> None:
    """As `run_pipeline`, as a stream if the settings say so.

    Args:
        pipeline: the module.
        options: its options.
        settings: the shared options.
        every_ms: default interval of the batches of a stream that is followed.
        has_out: the tables are written to `--out`.

    Raises:
        UsageError: `--out` is missing, or the directory is that of another stream.
        KourouError: as `run_pipeline`.
    """
    mode = settings.stream
    if mode is None:
        run_pipeline(pipeline, options, settings)
        return
    from kourou.pipelines.streams import Streaming, StreamPlans  # noqa: PLC0415

    if has_out and settings.out is None and not settings.explain:
        name = "--follow" if mode.follow else "--new"
        raise UsageError(
            f"{name} is given without --out DIR, which has the tables and the progress"
        )
    streaming = Streaming(
        directory=settings.out or "",
        follow=mode.follow,
        every_ms=every_ms if mode.every_ms is None else mode.every_ms,
        overwrite=settings.overwrite,
        on_progress=_print_progress if sys.stderr.isatty() else None,
    )
    if not settings.explain:
        pipeline.check(options, streaming)

    def explain(spark: SparkSession) -> dict[str, str]:
        plans = StreamPlans()
        pipeline.queries(spark, options, plans)
        return dict(plans.texts())

    def run(spark: SparkSession) -> Report:
        try:
            return pipeline.stream(spark, options, streaming)
        finally:
            if streaming.on_progress is not None:
                sys.stderr.write(_LINE_START)

    _run(pipeline, settings, explain, run)


_LINE_START: Final = "\r\x1b[K"
"""Control characters that empty the last line of a terminal."""


def _print_progress(counts: Mapping[str, int | float]) -> None:
    """Replace the last line of the terminal."""
    text = f"{counts['read']:,} messages read in {counts['batches']:,} batches; Ctrl-C ends"
    sys.stderr.write(f"{_LINE_START}{text}")
    sys.stderr.flush()


def _run(
    pipeline: Pipeline,
    settings: Settings,
    explain: Callable[[SparkSession], dict[str, str]],
    compute: Callable[[SparkSession], Report],
) -> Report | None:
    """Explain or compute in a session, and print and return the result."""
    # Only here, because the import of PySpark takes half a second.
    from kourou.pipelines.jobs import (  # noqa: PLC0415
        new_log_file,
        spark_session,
        translated_errors,
    )

    unblock()  # PySpark and streams handle SIGINT
    log_file = None if os.environ.get(TRACEBACK_VARIABLE) else new_log_file()
    begun_s = elapsed_s()
    name = getattr(pipeline, "__name__", "").rpartition(".")[2].replace("_", "-")
    try:
        with (
            spark_session(f"kourou {name}", settings.cores, log_file=log_file) as spark,
            translated_errors(),
        ):
            if settings.explain:
                _print_plans(explain(spark), as_json=settings.as_json)
                report = None
            else:
                report = compute(spark)
    except BaseException as error:
        is_expected = isinstance(error, UsageError | KeyboardInterrupt)
        if log_file is not None and log_file.stat().st_size and not is_expected:
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

    if settings.plot is not None:
        notes = [_counted(report.metrics), *report.notes]
        text = page(f"Pipeline {name}", report.charts, notes)
        settings.plot.write_text(text, encoding="utf-8")
    if settings.as_json:
        output.print_json(
            {
                "tables": {table.name: table.documents() for table in report.tables},
                "metrics": {**report.metrics, "seconds": round(seconds, 3)},
                **({"stream": dict(report.stream)} if report.stream else {}),
                "notes": list(report.notes),
                "out": settings.out,
                "plot": None if settings.plot is None else str(settings.plot),
            }
        )
        return
    for table in report.tables:
        print_table(table)
        output.print_line("")
    output.print_line(f"{_counted(report.metrics)}; {seconds:.1f} s")
    if report.stream:
        output.print_line(f"This run: {_counted(report.stream)}")
    for note in report.notes:
        print_stderr(note)
    if settings.out is not None:
        output.print_line(f"Parquet: {settings.out}")
    if settings.plot is not None:
        output.print_line(f"Charts: {settings.plot}")


def print_table(table: Table) -> None:
    """Print a table, and on stderr how many rows it has in addition."""
    from kourou.pipelines.report import words  # noqa: PLC0415

    output.print_table(
        [words(column).upper() for column in table.columns],
        [list(map(_cell, row)) for row in table.rows],
    )
    if table.total > len(table.rows):
        left = output.counted(table.total - len(table.rows), "more row")
        print_stderr(f"{left}: use --rows {table.total}, or --out for all columns")


def _counted(counts: Mapping[str, int | float]) -> str:
    """Return the counts, then the times, of which the unit is the end of the name."""
    numbers = [
        f"{value:,} {_noun(name, value)}"
        for name, value in counts.items()
        if not name.endswith("_ms")
    ]
    times = [
        f"{name.removesuffix('_ms').replace('_', ' ')} {value:,} ms"
        for name, value in counts.items()
        if name.endswith("_ms")
    ]
    return ", ".join(numbers + times)


def _noun(name: str, value: float) -> str:
    """Return the words of a count's name, in the singular for 1."""
    words = name.replace("_", " ")
    if value == 1:
        for plural, singular in (("ies", "y"), ("ches", "ch"), ("s", "")):
            if words.endswith(plural):
                return words.removesuffix(plural) + singular
    return words


def _cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list | tuple):
        return " ".join(one_line(str(one)) for one in value)
    if hasattr(value, "strftime"):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return value


def select(
    namesrv: str,
    topics: Sequence[str],
    start: str,
    end: str,
    tags: str = "*",
    sql: str | None = None,
) -> Selection:
    """Return the selection of topics in a span of time.

    Raises:
        UsageError: a topic, a time or the filter is not valid.
    """
    from kourou.pipelines.selection import Selection  # noqa: PLC0415

    for topic in topics:
        check_topic(topic)
    check_filter(tags, sql)
    begin, until_ms = parse_span(start, end, SystemClock().now_ms())
    since_ms = None if isinstance(begin, Start) else begin
    return Selection(
        name_server=namesrv,
        topics=tuple(topics),
        since_ms=since_ms,
        until_ms=until_ms,
        tags=tags if sql is None else sql,
        options={**connection_options(), **({} if sql is None else {"subExpressionType": "sql"})},
    )


def check_filter(tags: str, sql: str | None = None) -> None:
    """Refuse a filter that brokers or Spark would refuse, under the name of its option.

    Raises:
        FilterSyntaxError: the filter does not parse.
        UsageError: both are given, or tags look like SQL.
    """
    from kourou.spark.read_options import is_sql_expression  # noqa: PLC0415

    if sql is not None and tags != "*":
        raise UsageError("use either --tag or --sql: brokers apply one filter")
    option, text = ("--tag", tags) if sql is None else ("--sql", sql)
    try:
        subscription_of("", tags, sql)
    except FilterSyntaxError as error:
        reason = str(error).rpartition(" (at character")[0]
        raise FilterSyntaxError(f"{option} {text!r:.200}: {reason}", error.position) from None
    if sql is None and is_sql_expression(tags):
        raise UsageError(
            f"--tag {tags!r:.200} looks like SQL: name tags, such as 'eu || us'; "
            "kourou pipeline replay also has --sql"
        )


def connection_options() -> dict[str, str]:
    """Return the options of reads and writes that the environment gives to all commands.

    Raises:
        UsageError: a variable has no option.
    """
    namespace, tls = client_namespace(), client_tls()
    found = {"namespace": namespace} if namespace else {}
    if tls is None:
        return found
    if tls != TlsClientConfig(trust_cert_path=tls.trust_cert_path):
        raise UsageError(
            "pipelines read KOUROU_TLS_ENABLE and KOUROU_TLS_TRUST_CERT_PATH only: unset the other "
            "variables KOUROU_TLS_*"
        )
    found["useTls"] = "true"
    return (
        found if tls.trust_cert_path is None else {**found, "tlsCaFile": str(tls.trust_cert_path)}
    )


def event_time(clock: str) -> Any:  # noqa: ANN401
    """Return the member of `EventTime` that `--clock` names."""
    from kourou.pipelines.event_time import EventTime  # noqa: PLC0415

    try:
        return EventTime(clock)
    except ValueError:
        raise UsageError(f"--clock {clock!r} is unknown: use store or born") from None
