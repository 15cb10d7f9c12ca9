"""Use cases, one function each. What the API, the command line and MCP call, and nothing else does."""
