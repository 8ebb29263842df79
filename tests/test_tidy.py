"""Properties of the source text that no linter checks: sizes, names, one error tree."""

from __future__ import annotations

import ast
import functools
import tomllib
from collections import Counter
from collections.abc import Collection
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "src").rglob("*.py"))
MODULE_CODE_LINES_MAX = 400  # without docstrings, comments and blank lines
HAND_INLINED = "fast_send.py"  # exception: one long loop, inlined by hand for speed
ONE_TREE = "errors.py"  # exception: all error classes in one module, to register their codes
SHARD_CODE_LINES = 60  # a module below, with one importer, needs a reason
SHARDS = {
    "kourou.broker.timer.handover": "pure, with state of its own, beside a long loop",
    "kourou.broker.transactions.transaction_config": "a section of the configuration, as timers'",
    "kourou.client.consuming.membership.mode_changes": "pure, with a state machine of its own",
    "kourou.client.consuming.watching.topic_watch": "a loop of its own, beside a long consumer",
    "kourou.broker.replication.classic_copies": "a rule, beside what only composes",
    "kourou.broker.controlling.lease": "a timer with a rule of its own, beside the loops",
    "kourou.broker.copies": "one part of the components, which are many",
    "kourou.cli.cluster_adopt": "a command of its own, beside a long group of commands",
    "kourou.cli.serve_controlled": "what only controller mode needs, beside a long start",
    "kourou.console.exposition": "imported only if prometheus_client is installed",
    "kourou.http2.flood_credit": "a limit with state of its own, beside the protocol",
    "kourou.http2.turns": "a rule with state of its own, beside the connection",
    "kourou.http2.deadlines": "one timer for any items, beside what they are",
    "kourou.pipelines.ledger_parquet": "a destination for producers, which do not have Spark",
    "kourou.pipelines.stream_metrics": "pure, beside the queries that it measures",
    "kourou.properties_file": "a file format",
    "kourou.store.tools.adopt": "a tool of its own, as the others of its directory",
    "kourou.supervising.etcd_child": "a program of its own",
    "kourou.proxy.local_metadata": "needs the broker of the process, unlike the proxy",
    "kourou.proxy.pb.health": "messages of one package, with a generated stub",
    "kourou.proxy.pb.reflection_v1": "likewise",
    "kourou.proxy.pb.reflection_v1alpha": "likewise",
    "kourou.proxy.pb.wire": "base of the generated stubs",
    "kourou.store.tools.check_marks": "one part of a check, beside a module that is full",
    "kourou.spark.batch_reader": "beside the stream reader, which needs a newer PySpark",
    "kourou.spark.class_archive": "needs no Spark, as its test, and knows files that Java owns",
    "kourou.spark.duplicates": "a public function, which the package imports on first use",
    "kourou.spark.option_listing": "a public function, likewise",
}
FUNCTION_LINES_MAX = 50
HOMELESS = {"base", "common", "helpers", "impl", "manager", "misc", "service", "util", "utils"}
LEFTOVERS = ("FIXME", "TO" + "DO", "XX" + "X ")


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of the function without its docstring."""
    assert function.end_lineno is not None
    doc = ast.get_docstring(function, clean=False)
    return function.end_lineno - function.lineno + 1 - (doc.count("\n") + 1 if doc else 0)


def code_lines(text: str, tree: ast.Module) -> int:
    """Return the number of lines of code, without blank lines, comments and docstrings."""
    in_docstrings: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False):
            docstring = node.body[0]
            assert docstring.end_lineno is not None
            in_docstrings.update(range(docstring.lineno, docstring.end_lineno + 1))
    return sum(
        1
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#") and number not in in_docstrings
    )


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_module_is_tidy(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    errors = [
        n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name.endswith("Error")
    ]

    assert ast.get_docstring(tree), "the first line says what the module is for"
    assert not HOMELESS & set(path.stem.split("_")), "name the concept, not the drawer"
    is_long = code_lines(text, tree) > MODULE_CODE_LINES_MAX
    assert not is_long or path.name in (HAND_INLINED, ONE_TREE), "split by concept"
    too_long = [f.name for f in functions if body_lines(f) > FUNCTION_LINES_MAX]
    assert not too_long or path.name == HAND_INLINED, "too long"
    assert not errors or path.name == ONE_TREE or "testing" in path.parts, errors
    assert not [word for word in LEFTOVERS if word in text], "leftover marker"


def module_name(path: Path) -> str:
    """Return the dotted name of a module or package."""
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")


def imported_modules(path: Path, modules: Collection[str]) -> set[str]:
    """Return those of `modules` that the module imports, also for type checkers only."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                names.add(submodule if submodule in modules else node.module)
    return {name for name in names if name in modules}


@functools.cache
def imports_by_module() -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    paths = {module_name(path): path for path in MODULES}
    return {name: imported_modules(path, paths) for name, path in paths.items()}


def test_modules_do_not_import_each_other_in_circles() -> None:
    circle: list[str] = []
    try:
        TopologicalSorter(imports_by_module()).prepare()
    except CycleError as error:
        circle = error.args[1]
    assert not circle, "imports in a circle"


def test_every_shard_has_a_reason() -> None:
    """A small module with one importer is a part of that importer, unless a reason is listed."""
    importers: Counter[str] = Counter()
    for name, imported in imports_by_module().items():
        importers.update(imported - {name})
    shards: set[str] = set()
    for path in MODULES:
        name = module_name(path)
        if path.name == "__init__.py" or importers[name] != 1:
            continue
        text = path.read_text(encoding="utf-8")
        if code_lines(text, ast.parse(text)) < SHARD_CODE_LINES:
            shards.add(name)

    assert shards == SHARDS.keys()


def test_only_the_clock_module_reads_the_time() -> None:
    for path in MODULES:
        if path.name == "clock.py":
            continue
        text = path.read_text(encoding="utf-8")
        assert "time.time(" not in text, f"{path} must take a Clock"
        assert "time.sleep(" not in text, f"{path} must wait on something"


def test_only_the_decimals_module_tells_numbers_from_other_texts() -> None:
    for path in MODULES:
        if path.name == "decimals.py":
            continue
        text = path.read_text(encoding="utf-8")
        for name in ("isdigit", "isdecimal", "isnumeric"):
            assert f".{name}(" not in text, f"{path}: {name} alone takes what int() refuses"


def test_oldest_pyspark_that_is_allowed_is_the_one_that_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    [allowed] = [
        requirement
        for requirement in project["project"]["optional-dependencies"]["spark"]
        if requirement.startswith("pyspark")
    ]
    tested = (ROOT / "tests" / "spark" / "pyspark-4.2.lock").read_text(encoding="utf-8")

    assert allowed == "pyspark>=4.2,<5"
    assert tested.startswith("pyspark==4.2.0 ")
