"""Atoll: a self-hosted cloud for AI agents."""

__version__ = "0.1.0"
