"""Decides which chunks stay on the disk. Pure and synchronous: no I/O, no clock, no asyncio."""
