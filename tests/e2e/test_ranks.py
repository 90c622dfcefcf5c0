"""Ranks as real processes that get their dataset by fork or pickle, or whose process group comes late."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("ranks.py")
SAMPLES = 60


def write(folder: Path, numbers: range, **fields: str) -> None:
    """Writes lines of JSON to two files."""
    folder.mkdir()
    for part in range(2):
        lines = [json.dumps({"x": number, **fields}) for number in numbers[part::2]]
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Returns a folder with data of each kind."""
    write(tmp_path / "data", range(SAMPLES))
    write(tmp_path / "a", range(SAMPLES // 2))
    write(tmp_path / "b", range(SAMPLES // 2, SAMPLES))
    write(tmp_path / "others", range(SAMPLES), more="y")
    (tmp_path / "run").mkdir(mode=0o700)
    return tmp_path


def run(root: Path, *command: str, **variables: str) -> str:
    """Returns what a program writes to both of its streams."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment = {**kept, "STREAMER_RUNTIME_DIR": str(root / "run"), **variables}
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


def check(root: Path, epochs: int = 3) -> None:
    """Checks that both ranks together have each sample once in each epoch, in another order each."""
    ranks = [json.loads((root / f"rank-{number}.json").read_text()) for number in range(2)]
    for epoch in range(epochs):
        assert sorted(ranks[0][epoch] + ranks[1][epoch]) == list(range(SAMPLES)), f"epoch {epoch}"
    assert ranks[0][0] != ranks[0][1]


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize(
    ("kind", "reader"),
    [
        ("plain", "bare"),
        ("plain", "0"),
        ("plain", "2"),
        ("plain", "1 persistent"),
        ("plain", "own"),
        ("mix", "2"),
        ("joined", "1"),
        ("packed", "1"),
    ],
)
def test_each_rank_has_its_own_share_and_epochs(root: Path, kind: str, reader: str, start: str) -> None:
    """A dataset that is made before its ranks are started gives each rank its own share in every epoch."""
    if kind == "packed":
        (root / "packed").mkdir()
        lines = [json.dumps({"x": [number] * (9 + number % 3)}) for number in range(SAMPLES)]
        (root / "packed" / "0.jsonl").write_text("\n".join(lines) + "\n")
        np.save(root / "costs.npy", np.array([9 + number % 3 for number in range(SAMPLES)]))
    run(root, str(PROGRAM), str(root), kind, reader, start)
    check(root)


def write_program(root: Path, text: str) -> str:
    path = root / "program.py"
    path.write_text(text)
    return str(path)


SCRIPT = """
import sys, torch.multiprocessing
from streamer import StreamingDataLoader, StreamingDataset
SCALE = 3
class Transform:
    def __call__(self, sample):
        return {"x": helper(sample["x"])}
def helper(number):
    return SCALE * number
def collate(samples):
    return [sample["x"] for sample in samples]
def train(rank, root):
    data = StreamingDataset(root + "/data", cache_dir=root + "/cache", transform=Transform(), rank=rank, world_size=2)
    with StreamingDataLoader(data, 5, 1, collate_fn=collate) as loader:
        numbers = [number for batch in loader for number in batch]
    assert len(numbers) == 30 and all(number % 3 == 0 for number in numbers)
if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=(sys.argv[1],), nprocs=2)
"""


@pytest.mark.slow
def test_ranks_of_mp_spawn_send_functions_of_the_script(root: Path) -> None:
    """Ranks of `torch.multiprocessing.spawn` send functions of the script to workers.

    Their __main__ is called __mp_main__, which no worker has.
    """
    run(root, write_program(root, SCRIPT), str(root))


LATE = """
import json, sys
from pathlib import Path
import torch.multiprocessing
from torch import distributed
from streamer import StreamingDataLoader, StreamingDataset
from streamer.errors import StateError
def late(rank, root, what):
    data = StreamingDataset(root + "/data", cache_dir=root + "/cache", batch_size=5)
    loader = StreamingDataLoader(data, 5)
    numbers = lambda: [number for batch in loader for number in batch["x"].tolist()]
    if what == "length":
        assert len(loader) == 12
    elif what == "state":
        loader.state_dict()
    elif what == "iterator":
        iter(loader)
    elif what == "dataset length":
        assert len(data) == 60
    else:
        batches = iter(loader if what == "loader batch" else data)
        next(batches)
    distributed.init_process_group("gloo", init_method=f"file://{root}/group", rank=rank, world_size=2)
    if what in ("loader batch", "dataset batch"):
        source = loader if what == "loader batch" else data
        for read in (lambda: [next(batches) for _ in range(5)], lambda: next(iter(source))):
            try:
                read()
            except StateError as error:
                assert "rank 0 of 1" in str(error) and f"rank {rank} of 2" in str(error), error
            else:
                raise AssertionError("another rank, without a word")
        epochs = [[], []]
    elif what == "dataset length":
        assert len(data) == 30
        epochs = [[int(sample["x"]) for sample in data] for _ in range(2)]
    else:
        assert len(loader) == 6
        epochs = [numbers() for _ in range(2)]
        distributed.barrier()
        distributed.destroy_process_group()
        epochs[1] and numbers()  # as the rank that it was
        assert loader.state_dict()["global_batch"] == 10
    (Path(root) / f"rank-{rank}.json").write_text(json.dumps(epochs))
    loader.close()
    data.close()
if __name__ == "__main__":
    torch.multiprocessing.start_processes(late, args=tuple(sys.argv[1:]), nprocs=2, start_method="fork")
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["length", "state", "iterator", "dataset length", "loader batch", "dataset batch"])
def test_what_is_asked_before_the_group_does_not_fix_the_rank(root: Path, what: str) -> None:
    """The rank is decided at the first batch, and not by a length, state or iterator before the process group exists.

    A process group that comes after the first batch and gives another rank is an error.
    """
    run(root, write_program(root, LATE), str(root), what)
    if "batch" not in what:
        check(root, epochs=2)


METRICS = """
import json, sys
from pathlib import Path
import torch
from accelerate import Accelerator
from streamer import StreamingDataLoader, StreamingDataset
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
data = StreamingDataset(sys.argv[1] + "/data", cache_dir=sys.argv[1] + "/cache")
found, ends = [], []
with StreamingDataLoader(data, 7, 1) as made:
    loader = accelerator.prepare(made)
    for _ in range(2):
        for step, batch in enumerate(loader):
            with accelerator.accumulate():
                ends.append(accelerator.sync_gradients)
            found += accelerator.gather_for_metrics(batch["x"]).tolist()
assert ends == [False, False, False, True, True] * 2, ends
assert sorted(found) == sorted([*range(60), *range(60)]), len(found)
"""


@pytest.mark.slow
def test_accelerate_knows_the_last_batch_of_several_ranks(root: Path) -> None:
    """Accelerate on two ranks gathers each sample once for metrics, and ends gradient accumulation with the epoch."""
    pytest.importorskip("accelerate")
    program = write_program(root, METRICS)
    run(root, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program, str(root))
