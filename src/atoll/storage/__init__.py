"""The data of volumes: object storage, archives of workspaces, and the folders and mounts that sandboxes get of them.

Called by ops and workers. Knows domain objects and no row, no status and no request.
"""
