"""Containers, one module per format: finds the samples, and the fields of one. No I/O."""
