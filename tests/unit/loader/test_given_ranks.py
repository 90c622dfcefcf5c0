"""Tests of ranks that are given, as those of a data-parallel group are, beside a process group of other ranks.

The process group is what a replaced function says.
"""

from __future__ import annotations

import pytest

from streamer import Growing, StreamingDataLoader
from streamer.errors import ConfigError


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for a process group of four ranks, of which this one is the first; none of them can be talked to."""
    for module in ("rank.opening", "kinds.growing.growth"):
        monkeypatch.setattr(f"streamer.loader.{module}.process_group", lambda: (0, 4))


@pytest.mark.usefixtures("group")
def test_engines_of_given_ranks_cannot_be_asked(make_dataset, folder, caplog: pytest.LogCaptureFixture) -> None:
    """`share_caches="auto"` with given ranks warns that they take the place of the process group.

    It does not say that torch.distributed is not initialised, which it is.
    """
    data = make_dataset(folder, share_caches="auto", rank=0, world_size=2)
    with StreamingDataLoader(data, 4, report_every=None) as loader:
        next(iter(loader))
    (said,) = [record.getMessage() for record in caplog.records if "share_caches=" in record.getMessage()]
    assert "take the place of torch.distributed" in said


@pytest.mark.usefixtures("group")
def test_given_ranks_cannot_agree_on_what_grows(make_dataset, folder) -> None:
    """A growing dataset with given ranks is a `ConfigError` that says that they take the place of the group's ranks.

    The error does not ask for a process group, which is there.
    """
    data = make_dataset(folder, growing=Growing(reuse=2, epoch_samples=40), rank=0, world_size=2)
    with (
        StreamingDataLoader(data, 4, report_every=None) as loader,
        pytest.raises(ConfigError, match="take the place of its 4 ranks"),
    ):
        next(iter(loader))
