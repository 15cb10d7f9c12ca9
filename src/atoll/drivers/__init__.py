"""How sandboxes are made and unmade: one narrow interface, several drivers, one conformance suite."""
