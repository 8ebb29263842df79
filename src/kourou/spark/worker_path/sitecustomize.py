"""Start of each Python process of Spark: imports pyspark from its directory, not from its archive.

Spark puts its archive `pyspark.zip` first on the module path of these processes. The archive has no
compiled files, so that each process compiles 100 modules: 1 s of CPU, against 0.4 s in total. The
package beside it is the same. Python runs this file first, because `local_session` puts its
directory on the path; afterwards it runs the machine's own file of this name, if there is one.
"""

import sys
from importlib import import_module
from pathlib import Path

_HERE = str(Path(__file__).parent)


def _is_needless(entry: str, path: list[str]) -> bool:
    """Return whether the entry is the archive of a pyspark that is on the path itself."""
    archive = Path(entry)
    if archive.name != "pyspark.zip":
        return False
    package = archive.parent.parent.parent  # pyspark/python/lib/pyspark.zip
    # Spark names its directory without symbolic links; the path may lead through some.
    return package.name == "pyspark" and any(
        Path(one).resolve() == package.parent.resolve() for one in path
    )


sys.path[:] = [entry for entry in sys.path if entry != _HERE and not _is_needless(entry, sys.path)]
_this = sys.modules.pop("sitecustomize")
try:
    import_module("sitecustomize")
except ModuleNotFoundError as error:
    if error.name != "sitecustomize":
        raise
finally:
    sys.modules.setdefault("sitecustomize", _this)
