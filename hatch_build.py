"""Build hook that compiles the modules with C types, for a wheel of one platform.

    HATCH_BUILD_HOOKS_ENABLE=1 pip install .

It runs only when asked: the usual wheel is pure Python and serves every platform. A compiled module
is a usual module, `headers.py`, and beside it the C types of its functions and classes,
`headers.pxd`: Cython compiles both to an extension module that Python prefers to the source. The
objects are made in a temporary directory and go into the wheel only. So no compiled module ever
hides an edited source in this tree, and the source is what tests and tracebacks show.

Needs a C compiler.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PACKAGES = "src"


class CompiledModules(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel; see `BuildHookInterface`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the install is editable."""
        if version == "editable":
            return
        self._objects = tempfile.TemporaryDirectory()
        built = compile_modules(Path(self.root) / _PACKAGES, Path(self._objects.name))
        build_data["force_include"].update(
            {str(module): str(module.relative_to(built)) for module in built.rglob("*.*")}
        )
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(
        self,
        version: str,
        build_data: dict[str, Any],  # noqa: ARG002 - of the interface
        artifact_path: str,  # noqa: ARG002
    ) -> None:
        """Remove the objects, which are in the wheel now."""
        if version != "editable":
            self._objects.cleanup()


def compile_modules(source: Path, objects: Path) -> Path:
    """Compile the modules below `source` with C types; return the directory of packages.

    Raises:
        SystemExit: there is no C compiler, or it failed.
    """
    from Cython.Build import cythonize  # noqa: PLC0415 - only a build that asks for it has Cython
    from setuptools import Distribution, Extension  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415
    from setuptools.errors import CCompilerError  # noqa: PLC0415

    typed = sorted(path.relative_to(source).with_suffix("") for path in source.rglob("*.pxd"))
    modules = [
        Extension(".".join(path.parts), [f"{path}.py"], extra_compile_args=["-O2", "-g0"])
        for path in typed
    ]
    with contextlib.chdir(source):  # it names modules by their paths from here
        extensions = cythonize(
            modules,
            build_dir=str(objects / "c"),
            language_level=3,
            # Only the `.pxd` gives types: annotations are for readers and for mypy.
            compiler_directives={"annotation_typing": False},
            quiet=True,
        )
        command = build_ext(Distribution({"name": "kourou", "ext_modules": extensions}))
        command.build_lib, command.build_temp = str(objects / "lib"), str(objects / "o")
        command.ensure_finalized()
        try:
            command.run()
        except CCompilerError as error:
            raise SystemExit(
                f"compiled modules need a C compiler and Python's headers: {error}. Install them "
                "(Debian: apt install gcc python3-dev), or build without HATCH_BUILD_HOOKS_ENABLE: "
                "the pure-Python wheel needs neither"
            ) from error
    return objects / "lib"
