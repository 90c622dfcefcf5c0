"""Connects a process to the engine: finds or starts it, asks it for manifests and chunks, and reads those chunks.

Used by the loader and its workers (`loader/`, `batches/`), and by the commands (`cli/`) and `streamer doctor`. Calls
block until they are answered; the room has no event loop.
"""
