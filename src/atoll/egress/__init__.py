"""The egress proxy: a process beside the server that lets restricted sandboxes reach the names they may."""
