"""The rules of the product: states, transitions, decisions and errors. No I/O, no clock, no randomness."""
