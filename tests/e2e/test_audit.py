"""`streamer audit` on the states, checkpoints and logs of real loaders, whose samples a real engine fetches."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from streamer import MixedDataset, Order, StreamingDataLoader, StreamingDataset, Weights
from streamer.base.logs import JsonFormatter
from streamer.cli.main import main
from streamer.order.audit import Record, Tally, read_records, tallies, write_records

SAMPLES, BATCH = 101, 8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, standing_engine: Callable[[Path], None]) -> Path:
    """Returns 101 small files in one folder, and 30 in another, one of which is no array."""
    root = tmp_path_factory.mktemp("audit")
    for number in range(SAMPLES):
        path = root / "all" / f"{number:03}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, np.full(50, number, np.int32))
    (root / "bad").mkdir()
    for number in range(30):
        np.save(root / "bad" / f"{number:03}.npy", np.full(50, number, np.int32))
    (root / "bad" / "007.npy").write_bytes(b"\x93NUMPY, and no more")
    standing_engine(root / "all")
    return root


def plain(path: Path, **options: object) -> StreamingDataset:
    return StreamingDataset(path, **options)


def step(
    make: Callable[..., object], world: int, batches: int | None, state: dict | None = None, workers: int = 0
) -> list:
    """Runs each rank for some batches, or to the end of the epoch; returns the states."""
    states = []
    for rank in range(world):
        dataset = make(rank=rank, world_size=world)
        with StreamingDataLoader(dataset, BATCH // world, workers, report_every=None) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for number, _ in enumerate(loader, 1):
                if number == batches:
                    break
            states.append(json.loads(json.dumps(loader.state_dict())))
        dataset.close()
    return states


def audit(folder: Path, states: list, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    files = []
    for number, state in enumerate(states):
        files.append(str(folder / f"{number}.json"))
        Path(files[-1]).write_text(json.dumps(state))
    return main(["audit", *files]), capsys.readouterr().out


def run_4_2_1(make: Callable[..., object]) -> list:
    """Runs an epoch on four ranks, goes on with two and ends it with one; returns all states."""
    first = step(make, 4, 3)
    second = step(make, 2, 4, first[1], workers=2)
    return [*first, *second, *step(make, 1, None, second[0])]


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"shuffle": False}, marks=pytest.mark.slow),
        {"order": Order(last_batch="fill")},
        pytest.param({"order": Order(last_batch="drop")}, marks=pytest.mark.slow),
    ],
)
def test_a_run_on_4_2_and_1_ranks(options, data, tmp_path, capsys):
    """States of all ranks prove that an epoch on 4, 2 and 1 ranks gave each sample once, or all but a dropped rest.

    Without the states of one rank the epoch is not proven.
    """
    states = run_4_2_1(lambda **rank: plain(data / "all", **options, **rank))
    code, out = audit(tmp_path, states, capsys)
    assert code == 0, out
    assert "epoch 0: each once; " in out
    assert "by 4 ranks, then positions 24 to 56 by 2 ranks, then positions 56 to" in out
    code, out = audit(tmp_path, states[:3] + states[4:], capsys)
    assert code == 1
    assert "not proven" in out
    assert "no record of rank 3" in out


def test_a_selection_and_a_part_of_an_epoch(data, tmp_path, capsys):
    """An audit of a selection, in mid-epoch or at its end, needs the order that the cache folder's manifests give.

    Without a manifest the epoch is not proven.
    """

    def make(**rank: object) -> StreamingDataset:
        return plain(data / "all", **rank).select(fraction=(0, 0.7))

    states = step(make, 4, 5)
    assert audit(tmp_path, states, capsys)[0] == 0
    assert audit(tmp_path, run_4_2_1(make), capsys)[0] == 0
    code = main(["audit", "--cache-dir", str(tmp_path), *(str(tmp_path / f"{rank}.json") for rank in range(4))])
    assert code == 1
    assert "the order cannot be computed: no manifest or selection" in capsys.readouterr().out


def changed(state: dict, change: Callable[[Record], None]) -> dict:
    records = read_records(state)
    change(records[0])
    return {**state, **write_records(records)}


def replaced(record: Record, more: list[int], less: list[int]) -> None:
    """Puts samples into a record, and takes others out."""
    (plus,) = tallies(0, np.array(more)) or (Tally(0, 0, 0),)
    (minus,) = tallies(0, np.array(less)) or (Tally(0, 0, 0),)
    record.tallies = [record.tallies[0] + plus + Tally(0, -minus.samples, -minus.digest)]


@pytest.mark.parametrize(
    ("more", "less", "text"),
    [
        ([17], [], "sample 17 came once too often"),
        ([], [17], "sample 17 is missing"),
        ([17], [40], "sample 17 came in place of sample 40"),
    ],
)
def test_a_wrong_sample_in_a_state(more, less, text, data, tmp_path, capsys):
    """The audit finds and names a repeated, a missing and a swapped sample in runs on 4, 2 and 1 ranks."""
    states = run_4_2_1(lambda **rank: plain(data / "all", **rank))
    states[2] = changed(states[2], lambda record: replaced(record, more, less))
    code, out = audit(tmp_path, states, capsys)
    assert code == 1
    assert "epoch 0: FAULT" in out
    assert text in out


def test_a_mix(data, tmp_path, capsys):
    """The audit checks each member of a mix, in mid-epoch and at its end, and names a wrong sample with its member."""
    weights = Weights({"all": 3, "bad": 1}, epoch_samples=120)

    def make(**rank: object) -> MixedDataset:
        members = {name: plain(data / name, decode={"npy": None}) for name in ("all", "bad")}
        return MixedDataset(members, weights=weights, **rank)

    states = run_4_2_1(make)
    code, out = audit(tmp_path, states, capsys)
    assert code == 0, out
    assert audit(tmp_path, states[:4], capsys)[0] == 0

    def swap(record: Record) -> None:
        (wrong,) = tallies(0, np.array([(1 << 48) + 3]))
        record.tallies = [t + wrong if t.member == 1 else t for t in record.tallies]

    code, out = audit(tmp_path, [changed(states[0], swap), *states[1:]], capsys)
    assert code == 1
    assert "bad: sample 3 came once too often" in out


def test_skipped_samples_are_named(data, tmp_path, capsys):
    """An epoch in which another sample replaced an unreadable one is complete, and the audit names the skipped one."""
    states = run_4_2_1(lambda **rank: plain(data / "bad", on_error="skip", **rank))
    code, out = audit(tmp_path, states, capsys)
    assert code == 0, out
    assert "each once; 30 of 30 samples" in out
    assert re.findall(r"skipped: sample \d+ \((.*)\)", out.partition("epoch 1")[0]) == ["007.npy"]


def test_logs_and_checkpoints_hold_the_records(data, tmp_path, capsys):
    """A log at INFO proves each epoch, and states nested in a torch checkpoint are read without unpickling objects."""
    own, sink = logging.getLogger("streamer.loader.rank.audit_records"), io.StringIO()
    handler = logging.StreamHandler(sink)
    handler.setFormatter(JsonFormatter())
    own.addHandler(handler)
    level = own.level
    own.setLevel(logging.INFO)
    try:
        for rank in range(2):
            dataset = plain(data / "all", rank=rank, world_size=2)
            with StreamingDataLoader(dataset, 4, report_every=None) as loader:
                for _ in range(2):
                    assert len(list(loader)) == 13
                torch.save({"model": torch.ones(3), "loaders": [loader.state_dict()]}, tmp_path / f"{rank}.pt")
            dataset.close()
    finally:
        own.setLevel(level)
        own.removeHandler(handler)
    log = tmp_path / "both.log"
    log.write_text("{not a line of streamer's\n" + sink.getvalue() + sink.getvalue()[:300])
    assert main(["audit", str(log)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:19] for line in lines[1:]] == ["epoch 0: each once;", "epoch 1: each once;"]
    assert main(["audit", *(str(tmp_path / f"{rank}.pt") for rank in range(2))]) == 0
    torch.save({"loader": dataset}, tmp_path / "objects.pt")
    assert main(["audit", str(tmp_path / "objects.pt")]) == 2


def test_states_without_digests_are_said_to_be_so(data, tmp_path, capsys):
    """States without digests (of earlier versions, of a stock DataLoader) load, and the audit calls them no proof."""
    make = lambda **rank: plain(data / "all", **rank)  # noqa: E731 - of the ranks
    states = step(make, 2, 3)
    old = [{name: value for name, value in state.items() if name != "audit"} for state in states]
    for number, state in enumerate(old):
        (tmp_path / f"{number}.json").write_text(json.dumps(state))
    assert main(["audit", *(str(tmp_path / f"{number}.json") for number in range(2))]) == 1
    captured = capsys.readouterr()
    assert "2 states have no digests" in captured.err
    assert "not proven: no digests" in captured.out
    after = step(make, 2, None, old[0])
    code, out = audit(tmp_path, after, capsys)
    assert code == 1
    assert "positions 0 to 24: no record" in out
