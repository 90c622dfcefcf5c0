"""Chunks from and for other engines: the peer server, its client, and who belongs."""
