"""What commands print: one JSON value, or lines for a person; and how errors end them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console

from atoll.domain.errors import AtollError

progress_console = Console(stderr=True, highlight=False)


def emit(value: dict[str, Any], *, as_json: bool, text: Callable[[], str]) -> None:
    """Print the value as JSON, or its text."""
    sys.stdout.write((json.dumps(value) if as_json else text()) + "\n")
    sys.stdout.flush()


def progress(line: str) -> None:
    """Say what is going on, on stderr, so that stdout stays the answer's."""
    progress_console.print(line)


@contextmanager
def reported_errors(*, as_json: bool) -> Iterator[None]:
    """Turn an expected error into one line (or one JSON value) and exit status 1."""
    try:
        yield
    except AtollError as error:
        if as_json:
            sys.stdout.write(json.dumps({"error": error.message, "errorCode": error.code}) + "\n")
        else:
            progress_console.print(f"[red]error:[/red] {error.message}", markup=True)
        raise typer.Exit(1) from None
