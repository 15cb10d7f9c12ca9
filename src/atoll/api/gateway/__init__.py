"""The gateway: streams to processes, terminals, files and ports of one sandbox, for the holder of a session's token.

To add a call: a router with `prefix=GATEWAY` and `route_class=GatewayRoute` (both from `caller`), endpoints that take
`call: Annotated[GatewayCall, gateway_caller(GatewayScope.FILE)]`, and the router's name in `api/app.py`.
"""
