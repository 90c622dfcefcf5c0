"""Tests of a rank's number, and of what all ranks compare before they train.

Other ranks are what a replaced gather says, and in one test a second process in a real process group.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from streamer import StreamingDataset
from streamer.config import Environment
from streamer.errors import BrokenError, ConfigError, ObjectNotFoundError, StateError, StreamerError
from streamer.loader import agreement as distributed
from streamer.loader.agreement import agree, compress_texts, decompress_texts, detect, exchange, gather_for


def environment(**variables: str) -> Environment:
    return Environment.read({"HOME": "/nowhere", **variables})


@pytest.mark.parametrize(
    ("variables", "rank_config"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6"}, (5, 6)),
    ],
)
def test_the_environment_tells(variables, rank_config):
    """Rank and world size come from the variables that torchrun and SLURM set."""
    found = detect(environment=environment(**variables))
    assert (found.rank, found.world_size) == rank_config


@pytest.mark.parametrize(
    ("variables", "nodes"),
    [({}, 1), ({"GROUP_WORLD_SIZE": "4"}, 4), ({"SLURM_NNODES": "3"}, 3), ({"STREAMER_NODES": "0"}, 1)],
)
def test_the_environment_tells_the_number_of_nodes(variables, nodes):
    """The number of nodes comes from the variables that torchrun and SLURM set, or from `STREAMER_NODES`."""
    assert detect(environment=environment(**variables)).nodes == nodes


def test_what_is_given_overrides(monkeypatch):
    """A rank that is given overrides the process group and the environment; node and job stay."""
    monkeypatch.setattr(distributed, "process_group", lambda: (1, 2))
    found = detect(4, 9, environment(RANK="3", WORLD_SIZE="8", GROUP_RANK="2", TORCHELASTIC_RUN_ID="j"))
    assert (found.rank, found.world_size, found.node, found.job) == (4, 9, 2, "j")


def test_the_process_group_comes_before_the_environment(monkeypatch):
    """A process group comes before the environment, as the training uses it."""
    monkeypatch.setattr(distributed, "process_group", lambda: (1, 2))
    found = detect(environment=environment(RANK="3", WORLD_SIZE="8"))
    assert (found.rank, found.world_size) == (1, 2)


@pytest.mark.parametrize(("rank", "world_size", "field"), [(1, None, "world_size"), (None, 2, "rank"), (2, 2, "rank")])
def test_half_a_rank_or_none_at_all_is_refused(rank, world_size, field):
    """Rank and world size are given both or neither, with the rank below the world size."""
    with pytest.raises(ConfigError) as caught:
        detect(rank, world_size, environment())
    assert caught.value.details["field"] == field


@pytest.mark.parametrize(
    ("group", "rank_config", "compares"),
    [
        (None, (0, 2), False),
        ((0, 1), (0, 1), False),
        ((0, 2), (0, 1), False),
        ((0, 2), (0, 2), True),
    ],
    ids=["no group", "group of one", "one rank beside the group", "rank of the group"],
)
def test_ranks_compare_only_where_the_group_is_theirs(monkeypatch, group, rank_config, compares):
    """Ranks compare only where the process group has their rank and world size.

    A dataset for one rank alone must not wait for the others.
    """
    monkeypatch.setattr(distributed, "process_group", lambda: group)
    assert (gather_for(detect(*rank_config, environment())) is not None) is compares


def table(*others: dict[str, object]):
    """Returns a gather in which the other ranks have said this; it waits for none."""
    return lambda text: [text, *map(json.dumps, others)]


def test_equal_facts_agree():
    """Ranks with equal facts agree without an error."""
    facts, said = {"seed": 1, "epoch": None}, []
    gather = table({"facts": facts, "failure": None})
    agree(lambda text: said.append(json.loads(text)) or gather(text), facts, None)
    assert said == [{"facts": facts, "failure": None}]


def test_a_difference_is_an_error_that_names_it():
    """A difference between ranks is an error that names the facts, their values and the ranks."""
    others = [
        {"facts": {"seed": 1, "global_batch": 8, "lanes": 4}, "failure": None},
        {"facts": {"seed": 2, "global_batch": 9, "lanes": 4}, "failure": None},
    ]
    with pytest.raises(StateError, match=r"rank 0 and rank 2.*seed: 1 and 2; global_batch: 8 and 9") as caught:
        agree(table(*others), {"seed": 1, "global_batch": 8, "lanes": 4}, None)
    assert caught.value.details["fields"] == "seed, global_batch"


def test_a_failure_arrives_on_the_ranks_that_did_not_fail():
    """A failure of one rank is raised on the others, with its type, message, details and rank."""
    failed = {"facts": {}, "failure": ["ObjectNotFoundError", "no such bucket b", {"url": "s3://b"}]}
    with pytest.raises(ObjectNotFoundError, match="rank 1: no such bucket b") as caught:
        agree(table(failed), {"seed": 1}, None)
    assert caught.value.details == {"url": "s3://b"}


def test_a_rank_that_failed_raises_its_own_error():
    """A rank that failed raises its own error, with its traceback, and not a copy."""
    mine = StreamerError("mine")
    with pytest.raises(StreamerError) as caught:
        agree(table({"facts": {}, "failure": None}), {}, mine)
    assert caught.value is mine


@pytest.mark.parametrize(
    "call",
    [
        lambda gather, error: agree(gather, {}, error),
        lambda gather, error: exchange(gather, partial(raise_it, error)),
    ],
    ids=["agree", "exchange"],
)
def test_an_error_of_another_type_does_not_keep_the_others_waiting(call: Callable[..., object]):
    """A rank with an error that is not of the package takes part, too: it raises that error.
    The others raise a BrokenError that names its type and text.
    """
    mine, said = ZeroDivisionError("mine"), []
    with pytest.raises(ZeroDivisionError) as caught:
        call(lambda text: said.append(text) or [text], mine)
    assert caught.value is mine
    with pytest.raises(BrokenError, match="rank 1: ZeroDivisionError: mine"):
        agree(lambda text: [text, said[0]], {}, None)


def raise_it(error: Exception) -> object:
    raise error


def test_a_rank_that_does_not_come_is_named():
    """Ranks that do not come are named in an error, and the others do not wait for ever."""
    with pytest.raises(StateError, match=r"ranks \[1, 3\] of 4"):
        agree(lambda text: [text, None, text, None], {}, None)


def test_what_ranks_say_arrives_in_their_order():
    """What ranks say arrives in the order of the ranks, also where some say nothing.

    One that fails raises its own error.
    """
    others = [{"facts": value, "failure": None} for value in (None, [1, "b"])]
    assert exchange(table(*others), lambda: {"a": 1}) == [{"a": 1}, None, [1, "b"]]

    def fails() -> object:
        raise StreamerError("mine")

    with pytest.raises(StreamerError, match="mine"):
        exchange(table(*others), fails)


def test_the_texts_of_all_ranks_arrive_as_they_were():
    """Texts of all ranks are compressed and come back as they were, None for a rank that did not take part."""
    texts = ["engine 1", "engine 1", None, "engine 2 \N{SNOWMAN}"]
    assert decompress_texts(compress_texts(texts)) == texts


RANK = """
import os, sys
import torch.distributed as dist
from streamer.errors import StreamerError
from streamer import StreamingDataset
from streamer.loader import agreement as distributed
from streamer.loader.agreement import agree, detect, gather_for
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
rank_config = detect()
gather = gather_for(rank_config)
agree(gather, {"seed": 1}, None)
for facts, failure in (({"seed": rank}, None), ({"seed": 1}, StreamerError("broken here") if rank else None)):
    try:
        agree(gather, facts, failure)
    except StreamerError as error:
        print(rank_config.rank, rank_config.world_size, type(error).__name__, error)
distributed._WAIT_SECONDS = 0.2
if rank == 0:
    try:
        agree(gather, {}, None)
    except StreamerError as error:
        print(error)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.process
def test_two_real_ranks_get_the_same_errors(tmp_path: Path):
    """In a real process group a difference and a failure of rank 1 arrive on both ranks.

    A rank that does not come is named.
    """
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meet")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=240)[0].splitlines() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert [len(lines) for lines in told] == [3, 2]
    assert told[0][2].startswith("ranks [1] of 2")
    for rank, lines in enumerate(told):
        assert lines[0].startswith(f"{rank} 2 StateError rank 0 and rank 1")
        assert lines[1].startswith(f"{rank} 2 StreamerError")
        assert lines[1].endswith("broken here")


def test_parts_of_a_sent_dataset_keep_the_rank(monkeypatch, tmp_path: Path):
    """A dataset that a worker selects from one that was sent to it reads as the rank that has sent it."""
    (tmp_path / "a.txt").write_text("a")
    monkeypatch.setattr(distributed, "process_group", lambda: (1, 2))
    sent = pickle.dumps(StreamingDataset(f"{tmp_path}/"))
    # A spawned worker of torch's DataLoader has no process group.
    monkeypatch.setattr(distributed, "process_group", lambda: None)
    monkeypatch.setattr(distributed, "get_worker_info", lambda: object())
    arrived = pickle.loads(sent)
    for dataset in (arrived, arrived.select(fraction=(0, 0.5))):
        found = dataset._member.rank_config()
        assert (found.rank, found.world_size) == (1, 2)
