"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[
    Path, typer.Option("--data-dir", help="Where this control plane keeps everything.", envvar="ATOLL_DATA_DIR")
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option("--database-url", help="postgresql://…; SQLite in the data directory without it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]
