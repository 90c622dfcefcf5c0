"""The Hugging Face Hub, emulated (tests/clouds/hub.py): reads are pinned to the commit of each file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from streamer.errors import AccessDeniedError
from streamer.store import open_store
from streamer.store.base import ObjectStore
from tests.clouds.hub import TOKEN, Hub, running_hub
from tests.contract.store_contract import listed, read

pytest.importorskip("huggingface_hub", reason="the library of the Hub lists it")
pytestmark = [pytest.mark.usefixtures("warm_runtime"), pytest.mark.process]

ROOT = "hf://datasets/org/set"
OLD, NEW = bytes(range(200)), bytes(reversed(range(200)))


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with a dataset of two files."""
    with running_hub() as hub:
        hub.commit(train__a=OLD, train__b_dot_bin=OLD)
        yield hub


@pytest.fixture
async def store(hub: Hub) -> AsyncIterator[ObjectStore]:
    """A store of the dataset with the right token."""
    store = open_store(ROOT, {"endpoint": hub.url, "token": TOKEN})
    yield store
    await store.aclose()


async def test_a_branch_that_moves_changes_no_read(hub: Hub, store: ObjectStore) -> None:
    """After a push, old records are read from the old commit, new ones from the new; the token stays at the hub."""
    old = await listed(store, f"{ROOT}/train/")
    assert [record.version for record in old.values()] == [f"commit:{1:040x}"] * 2
    hub.commit(train__a=NEW)
    new = await listed(store, f"{ROOT}/train/")
    assert new[f"{ROOT}/train/a"].version == f"commit:{2:040x}"
    assert new[f"{ROOT}/train/b.bin"] == old[f"{ROOT}/train/b.bin"], "a commit changes the files that it changes"
    assert await read(store, old[f"{ROOT}/train/a"], 5, 100) == OLD[5:100]
    assert await read(store, new[f"{ROOT}/train/a"], 5, 100) == NEW[5:100]
    assert hub.leaked == [], "the token stays with the hub"


async def test_a_push_during_a_listing(hub: Hub, store: ObjectStore) -> None:
    """All records of a listing are of one commit, that of its beginning, if a push comes during it."""
    hub.commits_before_tree.append({"train__a": NEW, "train__b_dot_bin": NEW})
    old = await listed(store, f"{ROOT}/train/")
    assert sorted(old) == [f"{ROOT}/train/a", f"{ROOT}/train/b.bin"]
    assert {record.version for record in old.values()} == {f"commit:{1:040x}"}
    hub.commits_before_tree.append({"train__a": OLD})
    branch = await listed(store, f"{ROOT}@main/train/*.bin")
    assert {url: record.version for url, record in branch.items()} == {f"{ROOT}@main/train/b.bin": f"commit:{2:040x}"}
    assert await read(store, branch[f"{ROOT}@main/train/b.bin"], 5, 100) == NEW[5:100]


async def test_without_its_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a token option the one of HF_TOKEN is used, and a wrong one is denied."""
    for token in (TOKEN, "hf_other"):
        monkeypatch.setenv("HF_TOKEN", token)
        store = open_store(ROOT, {"endpoint": hub.url})
        try:
            if token == TOKEN:
                record = (await listed(store, f"{ROOT}/train/"))[f"{ROOT}/train/a"]
                assert await read(store, record, 0, 200) == OLD
                continue
            with pytest.raises(AccessDeniedError):
                await read(store, record, 0, 200)
        finally:
            await store.aclose()


async def test_the_hub_is_asked_once_per_file(hub: Hub, store: ObjectStore) -> None:
    """The hub is asked once per file, as long as the address to which it redirects is valid and accepted."""
    record = (await listed(store, f"{ROOT}/train/"))[f"{ROOT}/train/a"]

    async def asked(ranges: int) -> int:
        before = len(hub.resolved)
        for number in range(ranges):
            assert await read(store, record, number, number + 50) == OLD[number : number + 50]
        return len(hub.resolved) - before

    assert await asked(10) == 1
    hub.refuses_signed_before = len(hub.resolved) + 1
    assert await asked(10) == 1
    hub.signed_seconds, hub.refuses_signed_before = 30.0, len(hub.resolved) + 1
    assert await asked(3) == 3
    assert hub.leaked == []
