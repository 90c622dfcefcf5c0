"""What `import streamer` gives, which libraries it imports in a fresh process, and its frozen names and arguments."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.data import IterableDataset

import streamer

HEAVY = ("torch", "numpy", "fsspec", "aiohttp", "obstore", "nanoarrow", "msgspec", "cloudpickle", "PIL", "cv2")


def fresh(code: str) -> str:
    """Returns what a new Python process prints."""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def test_importing_brings_nothing_heavy():
    """`import streamer` imports neither torch nor numpy nor fsspec nor aiohttp, nor any other library."""
    assert fresh(f"import sys, streamer; print([m for m in {HEAVY!r} if m in sys.modules])") == "[]"


def test_the_errors_bring_nothing_heavy():
    """`streamer.errors` imports no library, so a program that only sometimes trains can catch its errors."""
    code = f"import sys, streamer; streamer.errors.ConfigError; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert fresh(code) == "[]"


def test_what_a_worker_imports_is_free_of_torch():
    """A worker imports no torch, and starts in a tenth of the time without it (1.1 s, 220 MB; 2026-11-20)."""
    code = (
        "import sys, streamer.batches.samples.recipe, streamer.decode.transforms;"
        "print([m for m in ('torch', 'cv2', 'PIL', 'fsspec', 'aiohttp', 'asyncio') if m in sys.modules])"
    )
    assert fresh(code) == "[]"


def test_one_dataset_brings_nothing_of_a_mix():
    """A single dataset imports no code of mixes in its workers or its rank, nor of growing datasets in its workers."""
    code = (
        "import sys, streamer.batches.samples.recipe;"
        "print([m for m in sys.modules if m.startswith(('streamer.order.mix', 'streamer.order.growing'))]);"
        "import streamer.loader.dataset; print([m for m in sys.modules if m.startswith('streamer.order.mix')])"
    )
    assert fresh(code) == "[]\n[]"


def test_what_an_engine_imports_until_it_listens_is_little():
    """An engine imports no store clients, builders of manifests or web server before it listens: a trainer waits."""
    code = (
        "import sys, streamer.service.embedded, streamer.service.lifecycle;"
        "print([m for m in ('torch', 'obstore', 'pycurl', 'fsspec', 'aiohttp', 'nanoarrow', 'diskcache')"
        " if m in sys.modules])"
    )
    assert fresh(code) == "[]"


def test_without_torch_the_error_says_what_to_install():
    """Without torch the import error says what to install, and not which file imports it."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import streamer\n"
        "try: streamer.StreamingDataset\n"
        "except ImportError as error: print(error)"
    )
    assert "pip install 'streamer-data[torch]'" in fresh(code)


def test_what_this_platform_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An import that the platform cannot serve names the platform and the missing name."""
    (tmp_path / "needs_linux.py").write_text("import fcntl\nfcntl.F_NO_SUCH_SEAL\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(streamer._HOMES, "pack", "needs_linux")
    with pytest.raises(ImportError, match=rf"streamer\.pack cannot be imported on {sys.platform}: .*F_NO_SUCH_SEAL"):
        from streamer import pack  # noqa: F401


def test_the_names_are_these():
    """The public names are frozen: a change here is a change for every user."""
    assert streamer.__all__ == [
        "Annotations",
        "Balance",
        "Buckets",
        "Decode",
        "DevicePrefetcher",
        "Estimate",
        "Growing",
        "Homogeneous",
        "Index",
        "MixedDataset",
        "Order",
        "Packing",
        "Ragged",
        "Skip",
        "StreamingDataLoader",
        "StreamingDataset",
        "Weights",
        "__version__",
        "collate_rows",
        "errors",
        "measure_lengths",
        "pack",
    ]
    assert dir(streamer) == sorted(streamer.__all__)
    for name in streamer.__all__:
        assert getattr(streamer, name) is not None
    with pytest.raises(AttributeError, match="Streaming"):
        streamer.Streaming  # noqa: B018


DATASET = {
    "format": "auto",
    "storage_options": None,
    "manifest": None,
    "cache_dir": None,
    "cache_bytes": "auto",
    "engine": None,
    "shuffle": True,
    "seed": 17,
    "order": None,
    "batch_size": None,
    "growing": None,
    "packing": None,
    "balance": None,
    "decode": "auto",
    "transform": None,
    "annotations": None,
    "on_error": "raise",
    "share_caches": "off",
    "rank": None,
    "world_size": None,
}
MIX = {
    "weights": None,
    "repeat": None,
    "choose": None,
    "batching": "stratified",
    "seed": 17,
    "source_key": "__source__",
    "batch_size": None,
    "order": None,
    "on_error": "raise",
    "rank": None,
    "world_size": None,
}
LOADER = {
    "batch_size": 1,
    "num_workers": 0,
    "drop_last": False,
    "device": None,
    "device_transform": None,
    "collate_fn": None,
    "ragged": (),
    "worker_type": "process",
    "prefetch_batches": None,
    "ring_bytes": None,
    "timeout": 0,
    "report_every": 30.0,
    "on_report": None,
}


@pytest.mark.parametrize(
    ("kind", "first", "defaults", "positional"),
    [
        (streamer.StreamingDataset, "url", DATASET, 1),
        (streamer.MixedDataset, "members", MIX, 1),
        (streamer.StreamingDataLoader, "dataset", LOADER, 3),
    ],
)
def test_the_classes_take_these_arguments(kind: type, first: str, defaults: dict[str, object], positional: int):
    """The public classes have frozen arguments, order and defaults; all but the first are keywords.
    The loader's catch-all is for torch's arguments."""
    named = list(inspect.signature(kind).parameters.values())
    if kind is streamer.StreamingDataLoader:
        assert named.pop().kind is inspect.Parameter.VAR_KEYWORD
    assert [(entry.name, entry.default) for entry in named[1:]] == list(defaults.items())
    assert (named[0].name, named[0].default) == (first, inspect.Parameter.empty)
    kinds = [entry.kind for entry in named]
    assert kinds[:positional] == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * positional
    assert set(kinds[positional:]) == {inspect.Parameter.KEYWORD_ONLY}


def test_the_dataset_has_these_methods():
    """The public methods of StreamingDataset, besides those of torch's IterableDataset, are frozen."""
    classes = streamer.StreamingDataset.__mro__
    own = {
        name for kind in classes[: classes.index(IterableDataset)] for name in vars(kind) if not name.startswith("_")
    }
    assert own == {
        "annotation_classes",
        "class_to_idx",
        "classes",
        "close",
        "epoch",
        "find",
        "get",
        "index_of",
        "join",
        "load_state_dict",
        "refresh",
        "repeated",
        "rows",
        "samples",
        "select",
        "set_epoch",
        "skipped",
        "state_dict",
    }
