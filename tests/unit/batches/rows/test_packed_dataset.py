"""Tests of a dataset of rows: every token once in each epoch, the same batches everywhere, and from any state on.

Documents are read from Megatron files through real loaders, on a fake engine.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from torch.utils.data import DataLoader

from streamer import Balance, Buckets, Index, Order, Packing, StreamingDataLoader, StreamingDataset, collate_rows
from streamer.batches.rows import costs, table
from streamer.batches.rows.planned import PlannedRows, RowsRecipe
from streamer.errors import ConfigError, DecodeError, ManifestError, StateError
from streamer.loader.stall.report import compare
from streamer.order.rows.spec import RowSpec
from tests.documents import documents, lengths, pieces_in, pieces_of, write_megatron

# By value: processes would import this module otherwise, and torch with it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROW = 64
COUNT = 400
FILL = Order(last_batch="fill")


@pytest.fixture(scope="module")
def given() -> list[np.ndarray]:
    return documents(lengths(COUNT, ROW))


@pytest.fixture(scope="module")
def url(tmp_path_factory, given) -> Path:
    return write_megatron(tmp_path_factory.mktemp("tokens"), given)


@pytest.fixture
def make(make_dataset, url) -> Callable[..., StreamingDataset]:
    """Makes datasets of rows of 64 tokens, planned in small sets."""

    def make(packing: Packing | Buckets | None = None, **options: object) -> StreamingDataset:
        packing = packing or Packing(ROW, rows_per_set=8)
        return make_dataset(options.pop("url", url), format="tokens", packing=packing, **options)

    return make


def rows_of(dataset: StreamingDataset, batch_size: int = 4, workers: int = 0, **options: object) -> list[dict]:
    """Returns the batches of an epoch, as arrays that are kept."""
    with StreamingDataLoader(dataset, batch_size, workers, report_every=None, **options) as loader:
        return [kept(batch) for batch in loader]


def kept(batch: dict) -> dict:
    """Returns the arrays of a batch in memory of their own, as slots are used again."""
    return {name: np.asarray(value).copy() for name, value in batch.items() if name != "max_seqlen"}


def same(one: list[dict], other: list[dict]) -> bool:
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("policy", ["best_fit", "concat"])
def test_every_token_once_in_each_epoch(make, given, policy):
    """Rows have every token once in each of three epochs, documents longer than a row in pieces."""
    dataset = make(Packing(ROW, policy, rows_per_set=8))
    assert dataset.samples == COUNT
    assert len(dataset) == dataset.rows
    with StreamingDataLoader(dataset, 4, report_every=None) as loader:
        for _ in range(3):
            batches = [kept(batch) for batch in loader]
            assert sum(len(batch["tokens"]) for batch in batches) == dataset.rows
            assert len(batches) == len(loader)
            if policy == "best_fit":
                assert pieces_in(batches) == pieces_of(given, ROW)
            tokens = sum(int((batch["document_ids"] > 0).sum()) for batch in batches)
            assert tokens == sum(map(len, given))


@pytest.mark.process
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_workers_make_the_same_batches(make, workers):
    """Any number of worker processes makes the same batches of rows.

    `max_seqlen` is an int, and there is a key per document.
    """
    assert same(rows_of(make(), workers=workers), rows_of(make()))
    with StreamingDataLoader(make(), 4, workers, report_every=None) as loader:
        batch = next(iter(loader))
    assert type(batch["max_seqlen"]) is int
    assert len(batch["__key__"]) == int(batch["document_ids"].max(1).values.sum())


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_stock_loader_makes_the_same_batches(make, workers):
    """torch's DataLoader with `collate_rows` makes the same batches of rows."""
    dataset = make(batch_size=4)
    assert len(dataset) > 0
    stock = DataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=collate_rows)
    assert same([kept(batch) for batch in stock], rows_of(make()))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.process)])
def test_the_padding_is_counted(make, given, workers):
    """`stats()` counts documents, tokens and places of rows, and the report says how full rows are."""
    dataset = make()
    with StreamingDataLoader(dataset, 4, workers, report_every=None) as loader:
        before = loader.snapshot()
        for number, _ in enumerate(loader):
            if number + 1 == len(loader):
                break
        stats, report = loader.stats().packing, compare(before, loader.snapshot())
    assert stats.documents >= pieces_of(given, ROW).total()
    assert stats.tokens >= sum(map(len, given))
    assert stats.places % ROW == 0
    assert stats.padding == 1 - stats.tokens / stats.places
    assert 0 < stats.padding < 0.2
    # Workers have begun the next epoch.
    assert stats.batches >= report.batches
    assert stats.rows >= dataset.rows
    assert stats.cut >= sum(-(-len(one) // ROW) for one in given if len(one) > ROW)
    assert stats.left_out == 0
    made = report.packing
    assert f"rows {1 - made.padding:.2%} full, {made.documents / made.rows:.1f} documents each, " in str(report)
    assert report.scalars()["stall/padding"] == made.padding
    assert report.scalars()["stall/tokens"] == made.tokens


def test_the_spread_of_costs_is_that_of_the_batches(make):
    """`cost_spread` is the standard deviation by mean of the batches' mean cost of a row.

    The costs are those of `balance=`.
    """
    found = {}
    for balance in (None, Balance(rows_per_rank=4, coefficients=(0, 1))):
        with StreamingDataLoader(make(balance=balance), 4, report_every=None) as loader:
            costs = [_cost_of(batch) / len(batch["tokens"]) for batch in loader]
            found[balance] = loader.stats().packing.cost_spread
        if balance is not None:
            assert found[balance] == pytest.approx(np.std(costs) / np.mean(costs))
    assert 0 < found[balance] < found[None] * 2


def _cost_of(batch: dict) -> int:
    ids = np.asarray(batch["document_ids"])
    return sum(int((row == number).sum()) ** 2 for row in ids for number in range(1, row.max() + 1))


@pytest.mark.parametrize("overflow", ["drop", "truncate"])
def test_tokens_that_are_left_out_are_counted(make, given, overflow):
    """Tokens that `overflow=` drops or truncates are counted in `stats()` and named in the log."""
    dataset = make(Packing(ROW, overflow=overflow, rows_per_set=8))
    with StreamingDataLoader(dataset, 4, report_every=None) as loader:
        list(loader)
        stats = loader.stats().packing
    longer = [len(one) for one in given if len(one) > ROW]
    kept = ROW if overflow == "truncate" else 0
    assert stats.left_out == sum(longer) - kept * len(longer)
    assert stats.cut == (len(longer) if kept else 0)
    assert f"{stats.left_out:,} tokens are left out ({overflow})" in dataset._member.open().rows.describe()


def test_samples_have_no_padding(make_dataset, url):
    """A dataset without packing has no counts of padding in stats and report."""
    with StreamingDataLoader(make_dataset(url, format="tokens"), 1, report_every=None) as loader:
        before = loader.snapshot()
        next(iter(loader))
        assert loader.stats().packing is None
        report = compare(before, loader.snapshot())
    assert "full" not in str(report)
    assert "stall/padding" not in report.scalars()


def test_a_bare_loop_yields_the_same_rows(make):
    """A bare loop yields the rows of the loader one by one, each with bounds of its own."""
    rows = list(make(batch_size=4))
    assert len(rows) == make().rows
    batches = [kept(collate_rows(rows[first : first + 4])) for first in range(0, len(rows), 4)]
    assert same(batches, rows_of(make()))
    assert rows[0]["cu_seqlens"][0] == 0
    assert rows[0]["cu_seqlens"][-1] == ROW


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.slow), 4, pytest.param(8, marks=pytest.mark.slow)])
def test_global_batches_do_not_depend_on_ranks(make, world):
    """The rows of a batch over all ranks are those of one rank's batch."""
    whole = rows_of(make(order=FILL), batch_size=8)
    ranks = [rows_of(make(rank=rank, world_size=world), batch_size=8 // world) for rank in range(world)]
    for number, batch in enumerate(whole):
        parts = np.concatenate([rank[number]["tokens"] for rank in ranks])
        assert Counter(row.tobytes() for row in parts) == Counter(row.tobytes() for row in batch["tokens"])
    assert {len(rank) for rank in ranks} == {len(whole)}


@pytest.mark.parametrize(("last_batch", "world"), [("fill", 3), ("drop", 3), ("short", 1)])
def test_as_many_steps_on_all_ranks(make, last_batch, world):
    """All ranks make as many steps as `len(loader)` says; rows that fill the last batch up are marked."""
    steps, real = set(), np.zeros(2, int)
    for rank in range(world):
        dataset = make(rank=rank, world_size=world, order=Order(last_batch=last_batch))
        with StreamingDataLoader(dataset, 7, report_every=None) as loader:
            for epoch in range(2):
                repeated = [loader.repeated.copy() for _ in loader]
                steps.add(len(repeated))
                real[epoch] += np.count_nonzero(~np.concatenate(repeated))
            steps.add(len(loader))
    rows, batch = dataset.rows, 7 * world
    assert rows % batch
    assert steps == {rows // batch if last_batch == "drop" else -(-rows // batch)}
    assert real.tolist() == [rows // batch * batch if last_batch == "drop" else rows] * 2


@pytest.mark.parametrize(
    ("count", "every", "options"),
    [
        (COUNT, 5, {}),
        pytest.param(11_000, 1, {}, marks=pytest.mark.slow),
        pytest.param(11_000, 10, {"balance": Balance(rows_per_rank=2)}, marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_from_every_step_on_other_ranks(make, tmp_path, count, every, options):
    """A packed run that stops on 4 ranks, goes on with 2 and ends on 1 has the rows of one that did not stop.

    It stops after each step of an epoch. The slow cases have 200 steps, and go on from each of them, or from every
    tenth.
    """
    options = {"order": FILL, "url": write_megatron(tmp_path / "own", documents(lengths(count, ROW))), **options}
    whole = rows_of(make(**options), batch_size=16)
    steps = len(whole)
    assert count == COUNT or steps >= 200
    wanted = [Counter(row.tobytes() for row in batch["tokens"]) for batch in whole]

    def run(world: int, state: dict | None, most: int) -> tuple[list[Counter], dict]:
        found: list[Counter] = [Counter() for _ in range(most)]
        for rank in range(world):
            with StreamingDataLoader(
                make(rank=rank, world_size=world, **options), 16 // world, report_every=None
            ) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for number, batch in zip(range(most), loader, strict=False):
                    found[number].update(row.tobytes() for row in np.asarray(batch["tokens"]))
                saved = loader.state_dict()
        return found, saved

    state = None
    for stop in range(1, steps):
        found, state_here = run(4, state, 1)
        assert found == wanted[stop - 1 : stop]
        if stop % every == 0:
            middle, later = run(2, state_here, 1)
            rest, _ = run(1, later, steps - stop - 1)
            assert [*middle, *rest] == wanted[stop:]
        state = state_here


@pytest.mark.parametrize(
    ("part", "packing"),
    [
        ("length", Packing(2 * ROW, rows_per_set=8)),
        ("policy", Packing(ROW, "concat", rows_per_set=8)),
        ("overflow", Packing(ROW, overflow="truncate", rows_per_set=8)),
        ("multiple_of", Packing(ROW, multiple_of=8, rows_per_set=8)),
        ("set_rows", Packing(ROW, rows_per_set=9)),
    ],
    ids=["length", "policy", "overflow", "multiple_of", "set_rows"],
)
def test_a_state_names_what_has_changed(make, part, packing):
    """A state of another packing is a `StateError` that names the part that decides the rows."""
    with StreamingDataLoader(make(), 4, report_every=None) as loader:
        next(iter(loader))
        state = loader.state_dict()
    assert state["packing.length"] == ROW
    with (
        StreamingDataLoader(make(packing), 4, report_every=None) as loader,
        pytest.raises(StateError, match=rf"packing\.{part} was .* pass packing= as the run had it"),
    ):
        loader.load_state_dict(state)


def test_a_state_of_other_labels_goes_on(make):
    """A state of a packing with other labels is loaded, since labels do not decide the rows."""
    with StreamingDataLoader(make(), 4, report_every=None) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with StreamingDataLoader(make(Packing(ROW, rows_per_set=8, labels="same")), 4, report_every=None) as loader:
        loader.load_state_dict(state)
        assert {**loader.state_dict(), "packing.labels": ""} == {**state, "packing.labels": ""}


def test_a_state_of_samples_is_not_one_of_rows(make, make_dataset, url):
    """A state of a dataset of samples does not fit a dataset of rows."""
    with StreamingDataLoader(make_dataset(url, format="tokens"), 1, report_every=None) as loader:
        state = loader.state_dict()
    assert not [name for name in state if name.startswith("packing")]
    with StreamingDataLoader(make(), 4, report_every=None) as loader, pytest.raises(StateError, match="packing"):
        loader.load_state_dict(state)


def test_a_part_of_the_documents(make, given):
    """Rows of a selection have its documents, and no other ones."""
    first = rows_of(make().select(fraction=(0, 0.5)))
    second = rows_of(make().select(fraction=(0.5, 1)))
    assert pieces_in(first) + pieces_in(second) == pieces_of(given, ROW)
    chosen = make().select(indices=range(10, 50))
    assert pieces_in(rows_of(chosen)) == pieces_of(given[10:50], ROW)


def test_without_shuffle_rows_follow_the_documents(make, given):
    """Without shuffle every epoch has the same rows."""
    dataset = make(shuffle=False)
    with StreamingDataLoader(dataset, 4, report_every=None) as loader:
        first, second = ([kept(batch) for batch in loader] for _ in range(2))
    assert same(first, second)
    assert pieces_in(first) == pieces_of(given, ROW)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.process)])
def test_documents_that_arrive_are_in_rows_from_the_next_epoch_on(fake_engine, make, given, tmp_path, workers):
    """With `on_change="refresh"` new documents are in rows from the next epoch on.

    A state of the rows before is refused.
    """
    folder, more = write_megatron(tmp_path / "growing", given[:300]), documents(lengths(100, ROW, seed=5), seed=6)
    dataset = make(url=folder, manifest=Index(on_change="refresh"))
    with StreamingDataLoader(dataset, 4, workers, report_every=None) as loader:
        assert pieces_in(map(kept, loader)) == pieces_of(given[:300], ROW)
        rows, state = dataset.rows, loader.state_dict()
        for file in write_megatron(tmp_path / "arrived", more, files=1).iterdir():
            file.rename(folder / f"9{file.suffix}")
        fake_engine.manifest = None
        assert pieces_in(map(kept, loader)) == pieces_of([*given[:300], *more], ROW)
    assert dataset.rows > rows
    later = StreamingDataLoader(make(url=folder), 4, report_every=None)
    with pytest.raises(StateError, match="manifest"):
        later.load_state_dict(state)


def test_a_refresh_is_tried_again(fake_engine, make_dataset, given, tmp_path):
    """A refresh whose file of lengths is late is an error of the epoch, and is tried again by the next `iter()`."""
    where, path = write_megatron(tmp_path / "tokens", given, files=1), tmp_path / "costs.npy"
    np.save(path, np.array([len(one) for one in given], np.int32))
    packing = Packing(ROW, rows_per_set=8, lengths=path)
    dataset = make_dataset(where, format="tokens", packing=packing, manifest=Index(on_change="refresh"))
    with StreamingDataLoader(dataset, 4, report_every=None) as loader:
        assert pieces_in(map(kept, loader)) == pieces_of(given, ROW)
        write_megatron(tmp_path / "more", given[:50], files=1)
        for file in (tmp_path / "more").iterdir():
            file.rename(where / f"9{file.name}")
        fake_engine.manifest = None
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"int32 \(400,\); a whole number for each of the 450 samples"):
                iter(loader)
        np.save(path, np.array([len(one) for one in [*given, *given[:50]]], np.int32))
        assert pieces_in(map(kept, loader)) == pieces_of([*given, *given[:50]], ROW)


def broken(sample: dict) -> dict:
    """Stands for a user's transform that fails for one document in fifty."""
    if int(sample["__key__"]) % 50 == 3:
        raise ValueError("no good")
    return sample


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.process)])
def test_documents_that_fail_are_left_out(make, given, workers, caplog):
    """With `on_error="skip"` documents that fail are left out of as many rows as ever; list and log name them."""
    dataset = make(transform=broken, on_error="skip")
    with StreamingDataLoader(dataset, 4, workers, report_every=None) as loader:
        batches = [kept(batch) for batch in loader]
        lost = {entry.ordinal for entry in loader.skipped}
    assert lost == {number for number in range(3, COUNT, 50) if len(given[number])}
    said = [text for record in caplog.records if (text := record.getMessage()).startswith("skipped and")]
    assert len(said) == len(lost)
    assert all(text.startswith("skipped and left out of its row: sample ") for text in said)
    assert sum(len(batch["tokens"]) for batch in batches) == dataset.rows
    assert pieces_in(batches) == pieces_of([one for number, one in enumerate(given) if number not in lost], ROW)


def test_a_bare_loop_leaves_them_out_too(make, given, caplog):
    """A bare loop leaves out documents that fail, too, and lists them in `dataset.skipped`."""
    dataset = make(transform=broken, on_error="skip")
    rows = list(dataset)
    lost = {entry.ordinal for entry in dataset.skipped}
    assert len(rows) == dataset.rows
    assert pieces_in(rows) == pieces_of([one for number, one in enumerate(given) if number not in lost], ROW)
    assert "skipped and left out of its row: sample " in caplog.text


def shorter(sample: dict) -> dict:
    """Stands for a user's transform that takes a token off, so that the planned number is wrong."""
    return {**sample, "tokens": sample["tokens"][1:]}


def test_another_number_of_tokens_is_an_error(make):
    """A document with another number of tokens than planned is a `DecodeError` with both numbers and what to do."""
    with (
        StreamingDataLoader(make(transform=shorter), 4, report_every=None) as loader,
        pytest.raises(DecodeError, match=r"(\d+) tokens are planned for the document .*'tokens' has \d+: .*measure"),
    ):
        list(loader)


def drawing(sample: dict, rng: np.random.Generator) -> dict:
    """Stands for a user's transform that draws."""
    return {**sample, "draw": float(rng.random())}


def test_random_numbers_depend_on_the_document(make):
    """A transform draws the same for a document in rows of any length, and in both pieces of it."""
    found = []
    for length in (64, 128):
        draws = {}
        for batch in rows_of(make(Packing(length, rows_per_set=8), transform=drawing)):
            for key, draw in zip(batch["__key__"].tolist(), batch["draw"].tolist(), strict=True):
                assert draws.setdefault(key, draw) == draw
        found.append(draws)
    assert found[0] == found[1]


def test_measured_costs(make_dataset, tmp_path, given, url):
    """A file with the tokens of each sample plans the rows of what a transform makes.

    A state with another file is refused.
    """
    counts = np.array([2 * len(one) for one in given])
    path = tmp_path / "costs.npy"
    np.save(path, counts)
    packing = Packing(ROW, lengths=str(path), rows_per_set=8)
    dataset = make_dataset(url, format="tokens", packing=packing, transform=doubled)
    batches = rows_of(dataset)
    assert pieces_in(batches) == pieces_of([np.repeat(one, 2) for one in given], ROW)
    with StreamingDataLoader(dataset, 4, report_every=None) as loader:
        state = loader.state_dict()
    np.save(path, counts + 1)
    again = make_dataset(url, format="tokens", packing=packing, transform=doubled)
    with (
        StreamingDataLoader(again, 4, report_every=None) as loader,
        pytest.raises(StateError, match=r"packing\.costs was"),
    ):
        loader.load_state_dict(state)


def doubled(sample: dict) -> dict:
    return {**sample, "tokens": np.repeat(sample["tokens"], 2)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.arange(5), "has int64 .5,.; a whole number for each of the 400 samples"),
        (np.ones(COUNT), "has float64"),
        (None, "is not an .npy file that can be read"),
        (
            np.r_[np.ones(COUNT - 7), 1 << 40, np.ones(6)].astype(np.int64),
            f"sample {COUNT - 7} has 1099511627776 tokens",
        ),
        (np.full(COUNT, 1 << 63, np.uint64), "sample 0 has 9223372036854775807 tokens, at most 2147483647"),
    ],
)
def test_costs_of_other_data_are_refused(make_dataset, tmp_path, url, content, message):
    """A file of lengths that are not of this dataset, or no lengths, is refused before rows are planned."""
    path = tmp_path / "costs.npy"
    if content is not None:
        np.save(path, content)
    dataset = make_dataset(url, format="tokens", packing=Packing(ROW, lengths=str(path)))
    with pytest.raises(ConfigError, match=message):
        len(dataset)


def test_an_archive_of_costs_is_refused(make_dataset, tmp_path, url):
    """An `.npz` file of lengths is refused."""
    path = tmp_path / "costs.npz"
    np.savez(path, np.ones(COUNT, np.int64))
    with pytest.raises(ConfigError, match=r"costs\.npz' is not an \.npy file .* an \.npz file of several arrays"):
        len(make_dataset(url, format="tokens", packing=Packing(ROW, lengths=str(path))))


def test_texts_must_be_measured(make_dataset, folder):
    """Packing of files whose tokens are not known is refused with the line that measures them."""
    with pytest.raises(ConfigError, match=r"streamer\.measure_lengths\(dataset, function, path="):
        len(make_dataset(folder, packing=Packing(64)))


def test_the_table_is_made_once(make, monkeypatch, fake_engine):
    """The table of rows is made once and opened by the next process; one that is cut off is made again."""
    dataset = make()
    rows, (path,) = dataset.rows, fake_engine.root.rglob("*.rows.arrows")
    monkeypatch.setattr(table.RowTable, "make", None)
    opened, map_table = [], table.map_table
    monkeypatch.setattr(table, "map_table", lambda *of: opened.append(of) or map_table(*of))
    assert make().rows == rows
    assert len(opened) == 1
    monkeypatch.undo()
    path.write_bytes(path.read_bytes()[:-100])
    monkeypatch.setattr("streamer.loader.members.member.EngineClient", fake_engine.connect)
    assert make().rows == rows


def some_documents() -> table.Documents:
    """Returns documents in chunks of which some have none."""
    samples = np.array([0, 3, 0, 1, 12, 5, 0, 9, 7, 0])
    costs = np.random.default_rng(0).integers(0, 3 * ROW, int(samples.sum()))
    first = np.append(0, np.cumsum(samples))
    return table.Documents("", "", samples, first, lambda numbers: costs[numbers], shuffle=True, reopen=some_documents)


SMALL = Packing(ROW, overflow="truncate", rows_per_set=2).spec()


@pytest.mark.parametrize("runs", [1, 3, 64])
@pytest.mark.parametrize("block", [1, 4, 1000])
def test_the_table_counts_tokens_of_any_block(monkeypatch, runs, block):
    """The table of rows has the tokens of each set, however many documents are summed at once.

    Some chunks have none.
    """
    documents = some_documents()
    monkeypatch.setattr(table, "_RUNS", runs)
    monkeypatch.setattr(table, "_BLOCK", block)
    made = table.RowTable.make(SMALL, documents)
    for number, tokens in enumerate(made.tokens.tolist()):
        members = documents.list_documents(made.sets.chunks(number))
        assert tokens == np.minimum(documents.costs(members), ROW).sum()


def test_an_open_set_takes_16_bytes_of_a_document():
    """An open set takes at most 17 bytes for each document: 16, and less than one more for its rows and chunks."""
    samples = some_documents().chunk_samples * 1000
    costs = np.random.default_rng(0).integers(1, ROW // 4, int(samples.sum()))
    first = np.append(0, np.cumsum(samples))
    documents = table.Documents("", "", samples, first, lambda numbers: costs[numbers], shuffle=True)
    recipe = RowsRecipe(packing=Packing(ROW), spec=RowSpec(ROW), shuffle=True, table=Path())
    opened = PlannedRows(recipe, documents, table.RowTable.make(recipe.spec, documents))._open_set(0, 17, 1)
    assert len(opened.document) >= 20_000
    assert sum(getattr(opened, name).nbytes for name in opened.__struct_fields__) <= 17 * len(opened.document)


@pytest.mark.process
def test_processes_make_the_same_table(monkeypatch):
    """Several processes make the same table of rows as one."""
    one = table.RowTable.make(SMALL, some_documents())
    monkeypatch.setattr(table, "_MANY", 1)
    monkeypatch.setattr(table, "usable_cores", lambda: 2)
    other = table.RowTable.make(SMALL, some_documents())
    for name in ("counts", "tokens", "left_out"):
        assert np.array_equal(getattr(one, name), getattr(other, name))


def test_the_digest_of_many_numbers_is_kept(make, given, tmp_path, monkeypatch, fake_engine):
    """The digest of a file of lengths is kept while the file stays as it is.

    A job that starts again does not read it.
    """
    path = tmp_path / "costs.npy"
    np.save(path, np.array([len(one) for one in given], np.int32))
    whole = make(Packing(ROW, rows_per_set=8, lengths=str(path))).rows
    monkeypatch.setattr(costs, "_BLOCK", 1)
    assert make(Packing(ROW, rows_per_set=8, lengths=str(path))).rows == whole
    (kept,) = fake_engine.root.rglob("*.costs")
    digest = kept.read_text()
    kept.write_text("")
    assert make(Packing(ROW, rows_per_set=8, lengths=str(path)))._member.open().rows.recipe.spec.costs == digest
    monkeypatch.setattr(costs, "_digest", lambda _: pytest.fail("read again"))
    assert make(Packing(ROW, rows_per_set=8, lengths=str(path))).rows == whole
    monkeypatch.setattr(costs, "_digest", lambda _: "of other numbers")
    np.save(path, np.array([len(one) + 1 for one in given], np.int32))
    assert (
        make(Packing(ROW, rows_per_set=8, lengths=str(path)))._member.open().rows.recipe.spec.costs
        == "of other numbers"
    )


def test_several_packings_of_one_job_are_told_apart(make, make_dataset, url, fake_engine):
    """Sessions of other rows of one dataset have other names, as the engine compares the orders of equal ones."""
    datasets = [make(), make(Packing(2 * ROW, rows_per_set=8)), make(Packing(ROW, "concat", rows_per_set=8))]
    datasets += [make(balance=Balance(rows_per_rank=2)), make_dataset(url, format="tokens")]
    for dataset in datasets:
        with StreamingDataLoader(dataset, 1, report_every=None) as loader:
            next(iter(loader))
    assert len({session.spec.stream for session in fake_engine.sessions}) == len(datasets)


def test_batches_go_to_a_device(make):
    """Batches of rows go to a device and through its transform; numbers stay as they are."""
    with StreamingDataLoader(make(), 4, device="cpu", device_transform=counted_tokens, report_every=None) as loader:
        batches = list(loader)
    assert {type(batch["max_seqlen"]) for batch in batches} == {int}
    assert all(batch["count"] == int((batch["document_ids"] > 0).sum()) for batch in batches)


def counted_tokens(batch: dict) -> dict:
    return {**batch, "count": int((batch["document_ids"] > 0).sum())}


def test_ragged_fields_need_no_argument(make):
    """`ragged=` with packing is refused, as such fields come as `Ragged` anyway."""
    with (
        StreamingDataLoader(make(), 4, ragged=["tokens"], report_every=None) as loader,
        pytest.raises(ConfigError, match="come as Ragged anyway"),
    ):
        next(iter(loader))


def test_a_table_that_takes_long_is_announced(make, monkeypatch, caplog):
    """A table of rows that takes long is announced once before it is made, with the number of documents."""
    monkeypatch.setattr(table, "_MANY", 100)
    monkeypatch.setattr(table, "usable_cores", lambda: 1)
    assert make().rows == make().rows
    assert [record.getMessage() for record in caplog.records if "table of rows" in record.getMessage()] == [
        "making the table of rows of 400 documents once, about 0 s on 1 core"
    ]


def test_the_log_says_how_full_rows_are(make, given, caplog):
    """The log says once how many rows, tokens and documents there are and how full rows are."""
    dataset = make()
    with caplog.at_level("INFO", logger="streamer.loader.rank.opening"):
        for _ in range(2):
            list(StreamingDataLoader(dataset, 4, report_every=None))
    (line,) = [record.getMessage() for record in caplog.records if " rows of 64 tokens in " in record.getMessage()]
    tokens = sum(map(len, given))
    assert line.startswith(f"{dataset.rows} rows of 64 tokens in ")
    assert f": {tokens:,} tokens of 400 documents, {tokens / (dataset.rows * ROW):.2%} full; order " in line


@pytest.mark.parametrize(
    ("sizes", "row", "rows"),
    [
        ([5], ROW, 1),
        ([64], ROW, 1),
        ([0, 0, 7], ROW, 1),
        ([300, 200], ROW, 8),
        ([1] * 200, ROW, 4),
        ([3, 16, 40, 13], 16, 5),
    ],
)
def test_small_datasets(make, tmp_path, sizes, row, rows):
    """Datasets of one document, one row, one token a document or the shortest row have every token."""
    own = documents(np.array(sizes))
    dataset = make(Packing(row, rows_per_set=8), url=write_megatron(tmp_path / "few", own, files=1))
    assert dataset.rows == rows
    assert pieces_in(rows_of(dataset, batch_size=3)) == pieces_of(own, row)


def test_documents_without_tokens_make_no_dataset(make, tmp_path):
    """Documents of which none has a token are a `ManifestError`, as there would be no row."""
    dataset = make(
        url=write_megatron(tmp_path / "none", documents(np.zeros(5, np.int64)) + documents(np.zeros(1, int)))
    )
    with pytest.raises(ManifestError, match="none of the 6 documents has a token for a row of"):
        len(dataset)


@pytest.mark.parametrize(
    ("packing", "said"),
    [
        (Packing(16, overflow="drop"), 'a row of 16 tokens; give a larger length, or overflow="split" or "truncate"$'),
        (Buckets(16, overflow="drop"), "the budget of 16 tokens; give a larger budget$"),
    ],
)
def test_documents_that_are_all_dropped(make, tmp_path, packing, said):
    """Documents that `overflow="drop"` leaves out altogether are a `ConfigError` that says what to give instead."""
    url = write_megatron(tmp_path / "long", documents(np.array([17, 30, 0])), files=1)
    with pytest.raises(ConfigError, match=rf'overflow="drop" leaves out all of the 3 documents: .* longer than {said}'):
        len(make(packing, url=url))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": "sample"}, 'packing= with shuffle="sample"'),
        ({"packing": {"length": 5}}, "length=5 must be 16"),
    ],
)
def test_arguments_that_exclude_each_other(make_dataset, url, options, message):
    """`packing=` that is wrong, or beside `shuffle="sample"`, is refused when the dataset is constructed."""
    with pytest.raises(ConfigError, match=message):
        make_dataset(url, **{"packing": Packing(64), **options})


def test_rows_are_those_of_a_packing(make_dataset, url):
    """`rows` of a dataset without packing is a `ConfigError`."""
    with pytest.raises(ConfigError, match="rows is for a dataset with packing="):
        _ = make_dataset(url, format="tokens").rows
