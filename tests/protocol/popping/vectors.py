"""Results of Java's classes for pop consumption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

VECTORS: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "vectors" / "pop.json").read_text(encoding="utf-8")
)
