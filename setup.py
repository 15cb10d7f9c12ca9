"""Compiles the agent (src/atoll/agent/csrc) into the package; everything else is in pyproject.toml."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

_AGENT = Path(__file__).parent.resolve() / "src" / "atoll" / "agent"


def compile_agent(version: str) -> None:
    """Make `agent/bin/atoll-agent` with the flags of the development build. Raises CompileError with what to do."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("gcc", "cc", "clang")), None)
    if compiler is None:
        raise CompileError(
            "Atoll's agent is a C program: install a C compiler (Debian: apt install gcc libc6-dev make)"
        )
    make = shutil.which("make")
    if make is None:
        raise CompileError("Atoll's agent is built by make: install it (Debian: apt install make)")
    command = [make, "-C", str(_AGENT / "csrc"), "agent", f"CC={compiler}", f"VERSION={version}"]
    try:
        subprocess.run(command, check=True)  # noqa: S603 - our own Makefile
    except subprocess.CalledProcessError as error:
        raise CompileError(
            "Atoll's agent could not be compiled; it needs a C compiler and a static C library (Debian: gcc libc6-dev)"
        ) from error


class BuildWithAgent(build_py):
    """Compiles the agent before the package's files are gathered, for wheels and editable installs alike."""

    def run(self) -> None:
        """Called by setuptools."""
        distribution: Distribution = self.distribution
        compile_agent(distribution.get_version())
        # The list of data files was made before the program existed.
        self.__dict__.pop("data_files", None)
        super().run()


class PlatformDistribution(Distribution):
    """The wheel holds a program, so it is not for every machine."""

    def has_ext_modules(self) -> bool:
        """Called by setuptools."""
        return True


setup(cmdclass={"build_py": BuildWithAgent}, distclass=PlatformDistribution)
