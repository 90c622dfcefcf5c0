"""Reads with each library as its documentation says: python readers.py NAME SETTINGS. Runs in their environment.

Each function opens a library's loader and gives a function of the epoch, which gives its batches: contents and numbers.
Nothing is decoded. All shuffle, all have persistent workers, all keep what they can keep in the same cache folder.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

SEED = 42
Batch = tuple[list[bytes], list[int]]
Epochs = Callable[[int], Iterable[Batch]]


@dataclass(frozen=True)
class Settings:
    """What all of them read, and how.

    Attributes:
        endpoint: of the server; bucket "bucket".
        files: urls of the objects by format, with http.
        local: folder with the same samples as files. cache: an empty folder. manifest: of the tars, for streamer.
        authority: path of the certificate that vouches for the server; "": the server speaks no TLS.
        shuffle: samples in the buffers of those that shuffle in a buffer.
    """

    endpoint: str
    files: dict[str, list[str]]
    local: str
    cache: str
    manifest: str
    authority: str
    samples: int
    workers: int = 2
    batch: int = 64
    epochs: int = 3
    shuffle: int = 1000

    def loader(self, dataset: object, **more: object) -> object:
        """torch's DataLoader over samples, with what all have in common."""
        from torch.utils.data import DataLoader

        common = {"batch_size": self.batch, "num_workers": self.workers, "persistent_workers": True}
        return DataLoader(dataset, **{**common, "collate_fn": columns, **more})


def columns(samples: Iterable[dict[str, object]]) -> Batch:
    """Contents and numbers of a batch, in lists."""
    held = list(samples)
    return [sample["jpg"] for sample in held], [int(sample["cls"]) for sample in held]


class LocalFiles:
    """What the local disk allows."""

    def __init__(self, root: str) -> None:
        self._paths = sorted(map(str, Path(root).rglob("*.jpg")))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> dict[str, object]:
        with open(self._paths[index], "rb") as file:
            return {"jpg": file.read(), "cls": Path(self._paths[index]).stem}


def local_files(s: Settings) -> Epochs:
    loader = s.loader(LocalFiles(s.local), shuffle=True)
    return lambda epoch: loader


# ---------------------------------------------------------------- streamer


def streamer_tars(s: Settings) -> Epochs:
    return _streamer(s, "s3://bucket/tars/", int, manifest=s.manifest)


def streamer_mds(s: Settings) -> Epochs:
    return _streamer(s, "s3://bucket/mds/", _whole)


def streamer_litdata(s: Settings) -> Epochs:
    return _streamer(s, "s3://bucket/litdata/", _whole)


def streamer_parquet(s: Settings) -> Epochs:
    return _streamer(s, "s3://bucket/parquet/", _whole)


def _whole(content: bytes) -> int:
    """A number as `decode=None` leaves it, where the format has numbers."""
    return int.from_bytes(content, "little")


def _streamer(s: Settings, url: str, number: Callable[[bytes], int], **more: object) -> Epochs:
    from streamer import StreamingDataLoader, StreamingDataset

    trust = {"client_kwargs": {"verify": s.authority}} if s.authority else {}
    options = {"key": "key", "secret": "secret", "endpoint_url": s.endpoint, **trust}
    dataset = StreamingDataset(
        url, cache_dir=s.cache, cache_bytes="16GB", storage_options=options, decode=None, seed=SEED, **more
    )
    loader = StreamingDataLoader(dataset, batch_size=s.batch, num_workers=s.workers)
    return lambda epoch: ((batch["jpg"], list(map(number, batch["cls"]))) for batch in loader)


# ---------------------------------------------------------------- the peers


def webdataset_stream(s: Settings) -> Epochs:
    return _webdataset(s)


def webdataset_cached(s: Settings) -> Epochs:
    return _webdataset(s, cache_dir=s.cache)


def _webdataset(s: Settings, **more: object) -> Epochs:
    import webdataset as wds

    dataset = wds.WebDataset(s.files["tars"], shardshuffle=100, seed=SEED, **more).shuffle(s.shuffle)
    batched = dataset.batched(s.batch, collation_fn=columns, partial=True)
    loader = wds.WebLoader(batched, batch_size=None, num_workers=s.workers, persistent_workers=True)
    return lambda epoch: loader


def mosaicml(s: Settings) -> Epochs:
    return _mosaicml(s)


def mosaicml_blocks(s: Settings) -> Epochs:
    return _mosaicml(s, shuffle_algo="py1br", shuffle_block_size=2000)


def _mosaicml(s: Settings, **more: object) -> Epochs:
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    dataset = StreamingDataset(
        remote="s3://bucket/mds", local=s.cache, batch_size=s.batch, shuffle=True, shuffle_seed=SEED, **more
    )
    # Forked workers share the connection that fetched index.json and mix up its answers (0.13.0, plain http).
    for stream in dataset.streams:
        stream._downloader.clean_up()
    loader = StreamingDataLoader(
        dataset, batch_size=s.batch, num_workers=s.workers, persistent_workers=True, collate_fn=columns
    )
    return lambda epoch: loader


def litdata(s: Settings) -> Epochs:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    # 0.2.76 asks its client for https alone.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    dataset = StreamingDataset("s3://bucket/litdata", cache_dir=s.cache, shuffle=True, seed=SEED, drop_last=False)
    loader = StreamingDataLoader(
        dataset, batch_size=s.batch, num_workers=s.workers, persistent_workers=True, collate_fn=columns
    )
    return lambda epoch: loader


def huggingface_tars(s: Settings) -> Epochs:
    return _huggingface(s, "webdataset", "tars")


def huggingface_parquet(s: Settings) -> Epochs:
    return _huggingface(s, "parquet", "parquet")


def _huggingface(s: Settings, builder: str, form: str) -> Epochs:
    from datasets import Image, load_dataset

    data = load_dataset(builder, data_files={"train": s.files[form]}, split="train", streaming=True)
    if builder == "webdataset":
        data = data.cast_column("jpg", Image(decode=False)).map(_content_of)
    # With the default of 5.2 one worker of two gets all files where there are fewer than 20 (its issue 8669).
    data = data.shuffle(seed=SEED, buffer_size=s.shuffle, max_buffer_input_shards=1)
    loader = s.loader(data)

    def batches(epoch: int) -> Iterable[Batch]:
        data.set_epoch(epoch)
        return loader

    return batches


def _content_of(sample: dict[str, object]) -> dict[str, object]:
    return {"jpg": sample["jpg"]["bytes"], "cls": sample["cls"]}


def s3torchconnector(s: Settings) -> Epochs:
    import torch.utils.data

    class Shards(torch.utils.data.IterableDataset):
        """Tars, their order and a buffer of samples shuffled, as its documentation joins it with webdataset's parts."""

        epoch = 0

        def __iter__(self) -> Iterator[dict[str, object]]:
            import random

            import webdataset as wds
            from s3torchconnector import S3IterableDataset

            Shards.epoch += 1
            urls = [f"s3://bucket/tars/{url.rpartition('/')[2]}" for url in s.files["tars"]]
            random.Random(SEED + Shards.epoch).shuffle(urls)
            objects = S3IterableDataset.from_objects(
                urls, region="us-east-1", endpoint=s.endpoint, enable_sharding=True
            )
            streams = ({"url": reader.key, "stream": reader} for reader in objects)
            grouped = wds.tariterators.group_by_keys(wds.tariterators.tar_file_expander(streams))
            yield from wds.filters.shuffle(s.shuffle)(grouped)

    loader = s.loader(Shards())
    return lambda epoch: loader


def lancedb(s: Settings) -> Epochs:
    return _lancedb(s)


def lancedb_clumps(s: Settings) -> Epochs:
    return _lancedb(s, shuffle_clump_size=s.batch)


def _lancedb(s: Settings, **more: object) -> Epochs:
    from lancedb import connect
    from lancedb.streaming import StreamingDataLoader, StreamingDataset

    table = connect("s3://bucket/lance", storage_options={"allow_http": "true"}).open_table("train")

    def batches(epoch: int) -> Iterable[Batch]:
        dataset = StreamingDataset(table, num_splits=s.workers, shuffle_seed=SEED, epoch=epoch, **more)
        # It refuses persistent workers, and calls forked ones experimental.
        return StreamingDataLoader(
            dataset,
            batch_size=s.batch,
            num_workers=s.workers,
            collate_fn=columns,
            multiprocessing_context="forkserver",
        )

    return batches


def grain_parquet(s: Settings) -> Epochs:
    import grain
    from grain.experimental import InterleaveIterDataset, WindowShuffleIterDataset
    from pyarrow.fs import S3FileSystem

    trust = {"tls_ca_file_path": s.authority} if s.authority else {}
    store = S3FileSystem(
        access_key="key", secret_key="secret", region="us-east-1", endpoint_override=s.endpoint, **trust
    )
    paths = [f"bucket/parquet/{url.rpartition('/')[2]}" for url in s.files["parquet"]]

    def batches(epoch: int) -> Iterable[Batch]:
        files = grain.MapDataset.source(paths).shuffle(seed=SEED + epoch).map(_Rows(store))
        rows = WindowShuffleIterDataset(InterleaveIterDataset(files, cycle_length=4), window_size=s.shuffle, seed=SEED)
        options = grain.MultiprocessingOptions(num_workers=s.workers)
        return rows.batch(s.batch, batch_fn=columns).mp_prefetch(options)

    return batches


class _Rows:
    """Opens a file; Grain's workers take slices of the files."""

    def __init__(self, store: object) -> None:
        self._store = store

    def __call__(self, path: str) -> object:
        from grain.experimental import ParquetIterDataset

        return ParquetIterDataset(path, filesystem=self._store)


# ---------------------------------------------------------------- the measurement


@dataclass(frozen=True)
class Reader:
    """One row of the table.

    Attributes:
        package: of the distribution, for its version. setting: what is not its default, or has to be said.
    """

    name: str
    package: str
    open: Callable[[Settings], Epochs]
    setting: str


READERS = (
    Reader("torch, local files", "torch", local_files, "DataLoader over local files: no network"),
    Reader("streamer, tars", "streamer-data", streamer_tars, "manifest present"),
    Reader("streamer, MDS", "streamer-data", streamer_mds, "MosaicML's shards as they are, indexed at first use"),
    Reader(
        "streamer, LitData", "streamer-data", streamer_litdata, "LitData's chunks as they are, indexed at first use"
    ),
    Reader("streamer, Parquet", "streamer-data", streamer_parquet, "indexed at first use"),
    Reader("WebDataset", "webdataset", webdataset_stream, "shardshuffle=100, shuffle(1000), no cache"),
    Reader("WebDataset, cache", "webdataset", webdataset_cached, "the same with cache_dir="),
    Reader("MosaicML", "mosaicml-streaming", mosaicml, "shuffle py1e, its default"),
    Reader("MosaicML, blocks", "mosaicml-streaming", mosaicml_blocks, "shuffle py1br, blocks of 2,000 samples"),
    Reader("LitData", "litdata", litdata, "shuffle=True"),
    Reader("Hugging Face, tars", "datasets", huggingface_tars, "buffer 1000, max_buffer_input_shards=1, no cache"),
    Reader("Hugging Face, Parquet", "datasets", huggingface_parquet, "the same"),
    Reader("LanceDB", "lancedb", lancedb, "its table, rows shuffled one by one, its default; a split per worker"),
    Reader("LanceDB, clumps", "lancedb", lancedb_clumps, "rows shuffled in clumps of 64"),
    Reader("Grain, Parquet", "grain", grain_parquet, "4 files interleaved, windows of 1000, pyarrow's S3 client"),
    Reader("s3torchconnector, tars", "s3torchconnector", s3torchconnector, "enable_sharding, buffer 1000, no cache"),
)


def measured(reader: Reader, s: Settings) -> Iterator[dict[str, float]]:
    """A row per epoch, each as soon as it is over."""
    begun = time.perf_counter()
    epochs = reader.open(s)
    set_up = time.perf_counter() - begun
    for epoch in range(s.epochs):
        before, started, first = spent(s), time.perf_counter(), 0.0
        seen: list[int] = []
        wrong = 0
        for contents, numbers in epochs(epoch):
            first = first or time.perf_counter() - started
            seen += numbers
            pairs = zip(contents, numbers, strict=True)
            wrong += sum(content[:8] != number.to_bytes(8, "little") for content, number in pairs)
        seconds = time.perf_counter() - started
        yield {
            "set_up_seconds": set_up,
            "samples_per_second": len(seen) / seconds,
            "first_batch_seconds": first,
            "cpu_seconds_per_1000": (spent(s) - before) / len(seen) * 1000,
            "memory_bytes": sum(map(_pss, processes(s))),
            "missing": s.samples - len(set(seen)),
            "repeated": len(seen) - len(set(seen)),
            "wrong": wrong,
        }


def processes(s: Settings) -> list[psutil.Process]:
    """This one, its workers, and streamer's engine, which is no child."""
    own = psutil.Process()
    return [own, *own.children(recursive=True), *_engine(s.cache)]


def _engine(cache: str) -> Iterator[psutil.Process]:
    if "streamer" not in sys.modules:
        return
    from dataclasses import replace

    from streamer.client.connection import read_statistics
    from streamer.client.settings import ClientSettings

    values = read_statistics(replace(ClientSettings.from_environment(), cache_dir=Path(cache)), 5.0)
    if values:
        engine = psutil.Process(int(str(values["pid"])))
        yield from (engine, *engine.children(recursive=True))


def spent(s: Settings) -> float:
    """CPU seconds of all processes so far, with those of children that have ended."""
    return sum(sum(process.cpu_times()[:4]) for process in processes(s))


def _pss(process: psutil.Process) -> int:
    return int(process.memory_full_info().pss)


def main() -> None:
    (reader,) = [reader for reader in READERS if reader.name == sys.argv[1]]
    settings = Settings(**json.loads(sys.argv[2]))
    for row in measured(reader, settings):
        print(json.dumps(row), flush=True)
    # Workers of several of them outlive their loader, or abort while the interpreter is taken down.
    os._exit(0)


if __name__ == "__main__":
    main()
