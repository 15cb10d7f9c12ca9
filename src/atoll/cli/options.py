"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _data_dir(text: str) -> Path:
    """An empty one, as from a variable that is not set, must not come to mean the present folder."""
    if not text:
        raise typer.BadParameter("name a folder; it is empty.")
    return Path(text)


DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        help="Where this control plane keeps everything.",
        envvar="ATOLL_DATA_DIR",
        parser=_data_dir,
        metavar="FOLDER",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option("--database-url", help="postgresql://…; SQLite in the data directory without it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]
