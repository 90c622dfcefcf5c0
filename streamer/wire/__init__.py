"""The protocol of the socket: frames in, events out, without I/O."""
