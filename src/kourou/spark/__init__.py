"""The PySpark data source `rocketmq`: topics as tables and streams.

Needs the extra `spark`. Spark finds the data source without an import wherever this package is
installed (through the package `pyspark_rocketmq`).

    spark.read.format("rocketmq").option("nameServer", "localhost:9876").option("topic", "flights")

The names in `__all__` are the public API. Each is loaded on first use, so that importing this
package needs no PySpark. No module of the package may have one of these names, because importing
the module would replace the function.
"""

from __future__ import annotations

import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kourou.spark.duplicates import dedup
    from kourou.spark.option_listing import options
    from kourou.spark.sessions import local_session as session
    from kourou.spark.sessions import register
    from kourou.spark.tracking import track

__all__ = ["dedup", "options", "register", "session", "track"]

_HOMES: Final = MappingProxyType(
    {
        "dedup": ("kourou.spark.duplicates", "dedup"),
        "options": ("kourou.spark.option_listing", "options"),
        "register": ("kourou.spark.sessions", "register"),
        "session": ("kourou.spark.sessions", "local_session"),
        "track": ("kourou.spark.tracking", "track"),
    }
)
"""Public name to the module that defines it, and its name there."""


def __getattr__(name: str) -> object:
    """Load a public name when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'kourou.spark' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value: object = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
