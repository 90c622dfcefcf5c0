"""Commands that measure, check and plan; no other package imports them, but for the command line."""
