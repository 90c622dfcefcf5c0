"""A stand-in for CUDA events in tests without CUDA."""

from __future__ import annotations


class FakeEvent:
    """Stands for a CUDA event whose work ends as soon as a caller waits for it; no stream, no device."""

    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.passed = True
