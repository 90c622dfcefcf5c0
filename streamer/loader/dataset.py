"""Defines `StreamingDataset`: a dataset in object storage, larger than the local disk, as an iterable of samples.

Users make it, and give it to `dataloader.py`, to `mixed_dataset.py`, to a pack or to `measure_lengths`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import TYPE_CHECKING, Never

import cloudpickle  # type: ignore[import-untyped]

from streamer.annotations.options import Annotations
from streamer.base.user_urls import shown
from streamer.batches import checks
from streamer.batches.rows.balance import Balance, read_balance
from streamer.batches.rows.options import Buckets, Packing, read_packing
from streamer.batches.samples.maker import Transform
from streamer.batches.samples.sent_code import send_main_by_value
from streamer.batches.skipping import OnError
from streamer.decode.rule import Decode, DecodeRule
from streamer.errors import ConfigError
from streamer.formats.base import Format
from streamer.loader.agreement import ParentRank
from streamer.loader.epoch_cell import EpochCell
from streamer.loader.epoch_dataset import EpochDataset
from streamer.loader.kinds import make_kind
from streamer.loader.members.member import DatasetMember
from streamer.loader.members.selections import Indices, make_choice
from streamer.loader.members.single_reads import SlowReads
from streamer.loader.options.arguments import Index, Order, Sharing, Skip, Url, given_or_default
from streamer.loader.options.dataset_options import DatasetOptions, FixedArguments, list_urls
from streamer.loader.rank.opening import StreamOpening
from streamer.order.growing import Growing, read_growing
from streamer.removed import check_arguments, refuse_method

if TYPE_CHECKING:
    from streamer.batches.samples.joins import Validate
    from streamer.loader.dataset_scan import DatasetScan
    from streamer.loader.members.joins import MissingRows


class StreamingDataset(FixedArguments, EpochDataset):
    """Iterates over the samples of a dataset in object storage, through the machine's cache, in an exact order.

    Works under `StreamingDataLoader`, under a plain `torch.utils.data.DataLoader` with any number of workers (fork or
    spawn), under torchdata's `StatefulDataLoader`, and in a bare `for`. Over all ranks and workers, every sample is
    delivered once per epoch. Constructing does no I/O; the first `len`, `iter` or index finds or starts the engine.

    Epochs: every `iter()` is the next epoch, starting at 0; `set_epoch(e)` makes the next one `e`, also for persistent
    workers. With a plain DataLoader, give the dataset the same `batch_size`: its workers then yield whole batches in
    the global order, the same for any number of workers. Without it, every sample is still delivered once, but batches
    depend on `num_workers`, and a run cannot resume with another number of ranks.

    Several loaders and loops may read from one dataset at the same time, each at its own pace; they share the fetched
    chunks.

    All ranks make the same number of steps: on several, the last batch is filled with repeats, see `Order`.

    Args:
        url: Prefix or object, or several: any fsspec url, or a local path.
        format: Name of a format, or one with options (`streamer.formats`): `Folder(extensions=["jpg"])` says which
            raw files are samples. With "auto" the names of the objects decide.
        storage_options: Options of the store, as for fsspec.
        manifest: Url or path of a built manifest (`streamer index`), or an `Index`, which also says how objects are
            listed and indexed, and what becomes of damaged or changed ones. By default it is found or built
            at first use.
        cache_dir: Folder of the chunks on this machine, by default $STREAMER_CACHE_DIR, else the XDG cache folder.
        cache_bytes: Limit of the cache, as bytes or "200GB"; "auto" means 80 % of the free space and of what the cache
            has already. For an engine that this process starts.
        engine: "unix:/path" of a running engine, or "inline", by which one that is started runs in a thread of this
            process. By default $STREAMER_ENGINE, else one is started as a process of its own.
        shuffle: True or "block", "sample" (docs/order.md has its price), False (in the order of the urls, of the keys
            below each, and of the entries of a tar).
        seed: Number that fixes the order, and the `rng` of transforms.
        order: What else fixes the order, and what becomes of the last batch: an `Order`. Rarely needed.
        batch_size: Samples of a batch on one rank, for plain DataLoaders.
        growing: How to train on what has arrived, each sample several times, over a link that is slower than the
            trainer; see `Growing`. For `StreamingDataLoader` and bare loops.
        packing: How documents share rows of one length, which are the samples then: a `Packing`; or how they make
            batches by a budget: `Buckets`.
        balance: How batches cost every rank the same in every step: a `Balance`.
        decode: "auto" (by extension), None (bytes), a function of (field name, bytes), or a dict of functions by
            extension or field; see `streamer.decode`. `Decode(allow_pickle=True)` reads pickles.
        transform: Function of the dict of a sample, which may return anything. A parameter called `rng` is given a
            numpy Generator that depends only on seed, epoch and sample; one called `out` a dict with the rows of the
            sample's arrays in the batch, by field, possibly empty: arrays that are written there and returned are not
            copied again.
        annotations: Url of a file with labels, boxes or texts of the samples, which are joined by key, or
            `Annotations` with options. By default the metadata.csv, .jsonl or .parquet beside the files, as Hugging
            Face has it.
        on_error: What becomes of a sample that cannot be decoded or transformed. With "raise" it is an error. With
            "skip" another sample of the batch replaces it, marked as a repeat, for up to 100 samples;
            `Skip(budget=...)` allows more or fewer. With `packing=` nothing replaces a document.
        share_caches: Whether the caches of all nodes act as one, "auto" (docs/scale-out.md), or not, "off". Their
            engines find each other through torch.distributed, and each rank reads what its node holds. For
            `StreamingDataLoader`; best with `Order(lanes_by="key")`.
        rank, world_size: Values in place of those of torch.distributed and the launcher's variables
            (docs/scale-out.md); both or neither.

    Raises:
        ConfigError: an invalid argument.
    """

    # The dataset as a member of a stream: of its own one, or of that of a mix.
    _member: DatasetMember

    @check_arguments("StreamingDataset")
    def __init__(
        self,
        url: Url | Sequence[Url],
        *,
        format: str | Format = "auto",  # noqa: A002 - the word of the domain
        storage_options: Mapping[str, object] | None = None,
        manifest: Url | Index | None = None,
        cache_dir: Url | None = None,
        cache_bytes: str | int = "auto",
        engine: str | None = None,
        shuffle: bool | str = True,
        seed: int = 17,
        order: Order | None = None,
        batch_size: int | None = None,
        growing: Growing | None = None,
        packing: Packing | Buckets | Mapping[str, object] | None = None,
        balance: Balance | None = None,
        decode: DecodeRule | Decode = "auto",
        transform: Transform | None = None,
        annotations: str | Annotations | Mapping[str, object] | None = None,
        on_error: OnError | Skip = "raise",
        share_caches: Sharing = "off",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        order = given_or_default("order", order, Order)
        options = DatasetOptions(
            urls=list_urls(url),
            format=format,
            storage_options=checks.mapping("storage_options", storage_options),
            manifest=Index.of(manifest),
            cache_dir=checks.path("cache_dir", cache_dir),
            cache_bytes=cache_bytes,
            engine=engine,
            shuffle=shuffle,
            seed=seed,
            order=order,
            batch_size=batch_size,
            growing=read_growing(growing),
            packing=read_packing(packing),
            balance=read_balance(balance),
            decode=Decode.from_rule(decode),
            transform=transform,
            annotations=Annotations.parse(annotations),
            on_error=on_error,
            share_caches=share_caches if order.peers == "off" else order.peers,
            rank=rank,
            world_size=world_size,
        )
        # This process and its workers are one job, where torchrun or SLURM name none.
        self._start(DatasetMember(options, (), f"pid-{os.getpid()}", EpochCell()))

    def __repr__(self) -> str:
        options = self._member.options
        choices = len(self._member.choices)
        urls = ", ".join(map(shown, options.urls))
        return f"StreamingDataset({urls}, shuffle={options.shuffle!r}, selections={choices})"

    # ------------------------------------------------------------ contents

    @property
    def samples(self) -> int:
        """Number of samples over all ranks; with `packing=` of documents, whose rows `rows` counts."""
        return self._member.open().samples

    @property
    def rows(self) -> int:
        """Number of rows of an epoch over all ranks, for a dataset with `packing=`.

        Raises:
            ConfigError: the dataset has no packing.
        """
        return self._member.open().rows.total()

    @property
    def classes(self) -> list[str]:
        """Names of the classes, by label; empty if there are none.

        They are those of the class folders, sorted as torchvision's ImageFolder has them, unless `format` or the files
        of the dataset name others.
        """
        return list(self._member.open().manifest.classes)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class, by name."""
        return {name: number for number, name in enumerate(self.classes)}

    @property
    def annotation_classes(self) -> list[str]:
        """Names of COCO's categories, in the order of the numbers in "labels"; empty for other annotations."""
        return self._member.annotation_classes()

    def __getitem__(self, index: int) -> object:
        """Reads one sample by a small ranged read. For inspection, not for training: it is not part of any schedule.

        Args:
            index: 0..samples-1 in the order of the manifest (of raw files by key with shuffle=False, else by a hash),
                or negative from the end.

        Raises:
            IndexError: there is no such sample.
            ConfigError: the index is not a whole number.
            Exception: the error of opening the dataset, of reading or decoding the sample, or of the transform.
        """
        with self._single_reads.read():
            return self._member.look(self.epoch, checks.index(index))

    def get(self, key: str) -> object:
        """Reads the first sample with this "__key__".

        The names of tar entries are in the archives only, which are read chunk by chunk until the key is found, unless
        `streamer index --columns __key__` has read them.

        Raises:
            KeyError: no sample has this key.
            Exception: see `__getitem__`.
        """
        return self._member.look(self.epoch, self._member.find(key))

    def index_of(self, key: str) -> int:
        """Finds the number of the first sample with this "__key__".

        `dataset[dataset.index_of(key)]` is `dataset.get(key)`.

        Reads no data: the keys of raw files are in the manifest, those of others in the table that `streamer index
        --columns __key__` has made, or a join by "__key__".

        Raises:
            KeyError: no sample has this key.
            ConfigError: there is no such table.
        """
        return self._member.find(key, reads=False)

    def find(self, key: str) -> Never:
        """Raises ConfigError, which says what to write instead."""
        refuse_method("StreamingDataset", "find")

    def select(
        self,
        *,
        indices: Indices | None = None,
        keys: str | Sequence[str] | None = None,
        labels: str | int | Sequence[str | int] | None = None,
        min_bytes: int | None = None,
        max_bytes: int | None = None,
        fraction: tuple[float, float] | None = None,
        seed: int = 0,
        where: str | None = None,
        transform: Transform | EllipsisType | None = ...,
    ) -> StreamingDataset:
        """Returns a dataset of the samples that meet all conditions, which are applied at first use. Can be repeated.

        The new dataset has its own order and its own epochs, and shares the cache.

        Args:
            indices: Numbers 0..samples-1 of this dataset: a sequence, slice, array of numbers or of bools.
                Repeated ones count once, and a warning says so.
            keys: Glob over keys ("dogs/*.jpg"), or several, of which one must match (not in containers).
            labels: Class name or number, or several (not in containers).
            min_bytes: Smallest stored size of a sample. Not for formats whose blocks are decoded as a whole (tables,
                videos, compressed files), in which a sample has no stored size (docs/select.md).
            max_bytes: Largest stored size of a sample, inclusive, as `min_bytes`.
            fraction: Random part, half-open: (0, 0.9) for training and (0.9, 1) for validation are disjoint.
            seed: Seed of the random parts.
            where: Condition on columns, "width >= 256 and lang == 'en'": fields of the annotations, of formats
                that have columns or of joined datasets, and what `streamer index --columns` has kept (docs/select.md).
            transform: Transform of the new dataset, or None for none. That of this dataset if it is left out.

        Raises:
            ConfigError: invalid conditions.
        """
        sizes = min_bytes, max_bytes
        added = make_choice(indices, keys=keys, labels=labels, sizes=sizes, fraction=fraction, seed=seed, where=where)
        options = self._member.options
        return self._from_member(
            self._member.part(added, options if transform is ... else replace(options, transform=transform))
        )

    @check_arguments("StreamingDataset.join")
    def join(
        self,
        other: StreamingDataset,
        *,
        on: str | tuple[str, str],
        columns: Sequence[str] | Mapping[str, str] | None = None,
        missing: MissingRows = "error",
        validate: Validate = "many_to_one",
    ) -> StreamingDataset:
        """Returns a dataset whose samples have the fields of another one, too, joined by key (docs/joins.md).

        The order, the epochs and what a state keeps are those of this dataset. The keys of both are read at the first
        use. What other samples and fields the other one has costs nothing. Can be repeated.

        Args:
            other: Dataset, of any size, with its own format, credentials, decoders and selections. The transform of
                this one gets the fields of both.
            on: Key: "__key__", a field, or a part of a JSON field ("json.uid"), of the same name in both. Otherwise
                the two keys, of this dataset and of the other. Keys are texts or whole numbers.
            columns: Fields of the other dataset that samples get, or a mapping to new names. By default all but keys.
            missing: What becomes of a sample without a row: an "error", None for the fields ("none"), or no sample
                ("drop").
            validate: How samples and rows belong together, in the words of pandas. "many_to_one": a sample has one row,
                of which it gets the fields. "many_to_many": it has any number, of which it gets lists, in the order
                of the other dataset. In both, samples may share a row.

        Raises:
            ConfigError: an invalid argument. Keys that do not fit are a ManifestError at the first use.
        """
        from streamer.loader.members.joins import Join, JoinArguments

        if not isinstance(other, StreamingDataset):
            raise ConfigError(f"join({type(other).__name__}): give a StreamingDataset", field="join")
        own = self._member
        right = other._member
        if right.joins:
            raise ConfigError("join() with a dataset that is joined itself: join each to this one", field="join")
        given = JoinArguments(on, columns, missing, validate)
        join = Join.from_arguments(own.options, (right.options, right.choices), given, after=len(own.choices))
        return self._from_member(own.part(None, own.options, (join,)))

    def refresh(self) -> bool:
        """Lists the objects again. Returns True if they have changed, and the next epoch uses the new ones. Collective.

        Unchanged objects stay in the cache. All ranks must call it between the same two epochs. If they see different
        listings, all of them keep the current manifest. With `Index(on_change="refresh")` a StreamingDataLoader and a
        bare `for` call it before each epoch. A plain DataLoader's workers do not: call it yourself between epochs, in
        the main process and without persistent workers. A state saved before a change cannot be loaded after it.

        Raises:
            StreamerError: the objects cannot be listed or indexed. It is raised on every rank.
        """
        return self._opening.refresh()

    # ------------------------------------------------------------ inside

    def _scan(self) -> DatasetScan:
        """Returns what reads each sample once for a pack. Raises ConfigError for a dataset that cannot be packed."""
        # Imported here, since a training does not need it.
        from streamer.loader.dataset_scan import DatasetScan

        return DatasetScan(self._member)

    @staticmethod
    def _from_member(member: DatasetMember) -> StreamingDataset:
        made = StreamingDataset.__new__(StreamingDataset)
        made._start(member)
        return made

    def _start(self, member: DatasetMember) -> None:
        self._member = member
        kind = make_kind(member)
        self._begin_at_zero(StreamOpening(member.options, kind, member.job, member.shared, parent=member.parent))
        self._single_reads = SlowReads()

    def __getstate__(self) -> dict[str, object]:
        """Returns what another process needs: no open resources, but the rank, which workers cannot detect."""
        # cloudpickle: transforms may be lambdas or live in a notebook.
        send_main_by_value()
        settings = cloudpickle.dumps((self._member.settings(), self._resume))
        return {"settings": settings, "epochs": self._epochs, "place": self._opening.place()}

    def __setstate__(self, state: dict[str, object]) -> None:
        settings = state["settings"]
        epochs = state["epochs"]
        place = state["place"]
        assert isinstance(settings, bytes)
        assert isinstance(epochs, EpochCell)
        assert isinstance(place, tuple)
        of_member, resume = cloudpickle.loads(settings)
        self._start(DatasetMember.from_settings(of_member, epochs, ParentRank.from_parent(place)))
        self._resume = resume
