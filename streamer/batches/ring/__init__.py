"""Slots of shared memory."""
