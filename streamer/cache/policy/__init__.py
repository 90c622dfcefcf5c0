"""What stays on the disk: pure and synchronous, without I/O, clock or asyncio."""
