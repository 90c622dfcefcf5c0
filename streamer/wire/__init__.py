"""The protocol of the socket: frames in, events out; no I/O in it."""
