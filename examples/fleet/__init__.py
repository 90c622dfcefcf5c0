"""Two jobs on four nodes whose caches act as one: `python -m examples.fleet` in a checkout, or `make demo-fleet`."""
