"""A real server for every test of this folder."""

from __future__ import annotations

from tests.server_fixtures import idle_server as idle_server
from tests.server_fixtures import server as server
from tests.server_fixtures import shared_server as shared_server
