"""The engine behind a unix socket."""
