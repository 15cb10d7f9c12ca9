"""The program inside every sandbox (`csrc/`) and its client on this side. May import `atoll.domain` only."""
