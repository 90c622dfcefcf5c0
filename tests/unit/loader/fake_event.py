"""A CUDA event without CUDA."""

from __future__ import annotations


class FakeEvent:
    """Passed once somebody waited for it."""

    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.passed = True
