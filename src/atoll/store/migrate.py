"""Brings a database to the present schema with Alembic. Run by `serve` and `bootstrap` before anything else."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine

_MIGRATIONS = Path(__file__).parent / "migrations"


def config_for(engine: Engine) -> Config:
    """Alembic's configuration for an engine."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["engine"] = engine
    return config


def upgrade(engine: Engine) -> None:
    """Apply every migration that is missing; safe to call from several processes at once."""
    command.upgrade(config_for(engine), "head")
