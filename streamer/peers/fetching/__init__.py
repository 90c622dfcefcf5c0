"""Joins an engine to its peers: which of them it asks for a chunk, what it fetches for them, and what it keeps."""
