"""The synchronous client: all that the trainer's processes know of the engine."""
