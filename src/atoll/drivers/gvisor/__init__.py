"""The gVisor driver: sandboxes on this machine, one runsc each. `driver` puts the parts in order."""
