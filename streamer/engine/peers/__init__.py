"""The engine among its peers: whom it asks for a chunk, what it fetches for them, and what it keeps."""
