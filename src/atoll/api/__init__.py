"""The HTTP edge: one FastAPI application over the use cases of `atoll.ops`."""
