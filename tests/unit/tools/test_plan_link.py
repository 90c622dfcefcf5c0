"""The measurement of the link by `streamer plan`, for datasets that have nothing to measure it with."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import pytest

from streamer.errors import ConfigError
from streamer.manifest.model import ObjectRecord
from streamer.tools.plan_command import _measure_link


@pytest.mark.parametrize("sizes", [[], [0, 0]])
async def test_a_dataset_without_a_byte_needs_a_link(sizes: list[int]) -> None:
    """A dataset without objects, or with empty ones only, raises ConfigError that names --link."""
    objects = [ObjectRecord(f"s3://b/{number}", size, "v") for number, size in enumerate(sizes)]
    manifest = SimpleNamespace(objects=len(objects), object=objects.__getitem__)
    with pytest.raises(ConfigError, match=r"no object of the dataset has a byte .*; --link says it"):
        await _measure_link(manifest, Namespace(storage_options={}, first_byte=None))  # type: ignore[arg-type]
