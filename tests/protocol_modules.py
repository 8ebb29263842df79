"""Modules of `kourou.protocol` and their header classes, for tests of all of them."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType

from kourou import protocol


def protocol_modules() -> list[ModuleType]:
    """Return all modules of the package, also those of requests that are not served."""
    found = pkgutil.walk_packages(protocol.__path__, f"{protocol.__name__}.")
    return [importlib.import_module(name) for name in sorted(module.name for module in found)]


def header_classes() -> Iterator[tuple[str, type]]:
    """Yield the names and classes of all headers."""
    for module in protocol_modules():
        for name, member in sorted(vars(module).items()):
            is_own = getattr(member, "__module__", None) == module.__name__
            if not is_own or not isinstance(member, type):
                continue
            if dataclasses.is_dataclass(member) and re.search(r"Header(V2)?$", name):
                yield name, member
