"""Structured logs: one JSON line an event on stderr. What is logged is chosen at each call: never a command line,
an environment, output, a token or a body."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs(level: str = "info") -> None:
    """Send structlog's and the standard library's records to stderr as JSON."""
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format='{"event":"%(name)s","level":"%(levelname)s"}')
