"""Calls that leave this machine for a host that a caller chose: each goes to an address that was checked."""
