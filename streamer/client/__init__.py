"""The synchronous client: the only part of the trainer's processes that knows the engine."""
