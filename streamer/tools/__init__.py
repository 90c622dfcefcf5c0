"""Commands that measure, check, plan and demonstrate; no other package imports them, but for the command line."""
