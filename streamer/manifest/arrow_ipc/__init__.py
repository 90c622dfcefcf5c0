"""Tables as Arrow IPC streams: written once, read as views over a mapping."""
