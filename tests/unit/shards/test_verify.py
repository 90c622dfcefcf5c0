"""`verify` at a place whose description of a pack is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamer.errors import IntegrityError
from streamer.shards.verify import verify


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"prefix": "\xff"}',
        b'{"prefix": "", "output": "x"}',
        b'{"prefix": "", "output": []}',
    ],
)
async def test_a_damaged_description_is_named(tmp_path: Path, content: bytes) -> None:
    """A description of a pack that is not one raises IntegrityError with its place."""
    place = tmp_path / ".streamer" / "pack" / "0123456789abcdef"
    place.mkdir(parents=True)
    (place / "job.json").write_bytes(content)
    with pytest.raises(IntegrityError, match=r"job\.json is not a description of a pack"):
        await verify(f"{tmp_path}/", {})
