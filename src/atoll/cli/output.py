"""What commands print: one JSON value, or lines for a person; and how errors end them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from atoll.domain.errors import AtollError

progress_console = Console(stderr=True, highlight=False)


def emit(value: dict[str, Any], *, as_json: bool, text: Callable[[], str]) -> None:
    """Print the value as JSON, or its text."""
    sys.stdout.write((json.dumps(value) if as_json else text()) + "\n")
    sys.stdout.flush()


def progress(line: str) -> None:
    """Say what is going on, on stderr, so that stdout stays the answer's."""
    progress_console.print(line, markup=False, soft_wrap=True)


@contextmanager
def reported_errors(*, as_json: bool) -> Iterator[None]:
    """Turn an expected error into one line (or one JSON value) and exit status 1."""
    try:
        yield
    except AtollError as error:
        _report(error.message, error.code, as_json=as_json)
        raise typer.Exit(1) from None
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        _report(f"{what}{error.strerror or error}", None, as_json=as_json)
        raise typer.Exit(1) from None


def _report(message: str, code: str | None, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"error": message, "errorCode": code}) + "\n")
    else:
        # Escaped: a message may repeat what was typed, and brackets in it are no mark-up.
        progress_console.print(f"[red]error:[/red] {escape(message)}", soft_wrap=True)
