"""The layout of a batch in memory."""
