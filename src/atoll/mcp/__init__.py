"""The Model Context Protocol: the operations of the Sandbox API as tools, over HTTP in the server and over stdio.

`tools` is pure and `server` speaks the protocol; `atoll.api.mcp` serves them at `/mcp`, `stdio` carries them to a
client that starts programs. Nothing here knows an operation: all come from the OpenAPI document.
"""
