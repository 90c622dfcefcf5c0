"""Containers, one file per format: where the samples lie, and what is in one. No I/O."""
