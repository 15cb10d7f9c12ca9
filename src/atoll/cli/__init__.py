"""The `atoll` command. Every command takes `--json` and then prints one JSON value on stdout and nothing else."""
