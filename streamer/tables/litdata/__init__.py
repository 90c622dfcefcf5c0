"""LitData's chunks."""
