"""Finds the states of loaders in files, and computes which samples their order has. Used by `audit_command.py`.

The order is computed from the manifests in the cache folder.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError

import numpy as np

from streamer.base.extras import require_extra
from streamer.batches.samples.opened import Members, OpenedDataset
from streamer.batches.samples.plans import BatchRecipe, Plans, StreamCodes
from streamer.config import Environment
from streamer.errors import ConfigError, ManifestError
from streamer.manifest.selection import Selection
from streamer.manifest.table import Manifest
from streamer.order.audit import LOG_MARK, Codes, Tallies, add_tallies, tallies
from streamer.order.state import State

# Keys by which a mapping is taken for a state.
_FIELDS = {"format", "order_id", "epoch", "position"}
# Positions whose samples are computed together.
_BLOCK = 1 << 18


def states_in(path: Path) -> Iterator[Mapping[str, object]]:
    """Yields every state in a file: a checkpoint of torch, a JSON file, or a log.

    Raises:
        ConfigError: a checkpoint has other objects than plain values and tensors, or torch is missing.
        OSError: the file cannot be read.
    """
    if zipfile.is_zipfile(path):
        yield from _find_states(_checkpoint(path))
        return
    text = path.read_text(errors="replace")
    try:
        yield from _find_states(json.loads(text))
    except (ValueError, RecursionError):
        for line in text.splitlines():
            if LOG_MARK not in line:
                continue
            try:
                # A log of JSON has the message in its field `body`.
                body = str(json.loads(line)["body"]) if line.startswith("{") else line
                state, _ = json.JSONDecoder().raw_decode(body, body.index(LOG_MARK) + len(LOG_MARK))
            except (ValueError, LookupError, TypeError, RecursionError):
                # The line is another program's, or was cut by a kill.
                continue
            yield from _find_states(state)


def _checkpoint(path: Path) -> object:
    """Returns the content of a checkpoint of torch; ConfigError if torch is missing or refuses it."""
    with require_extra(f"the checkpoint {path}", field="files"):
        import torch
    try:
        # Tensors stay on the disk; objects of any other class are refused.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (UnpicklingError, RuntimeError) as error:
        raise ConfigError(
            f"{path}: torch.load(weights_only=True) refuses it; save the loader's state by itself, as JSON "
            f"({str(error).splitlines()[0]})",
            field="files",
        ) from error


def _find_states(value: object) -> Iterator[Mapping[str, object]]:
    """Yields the states in a value, at any depth of mappings, lists and tuples."""
    match value:
        case Mapping() if value.keys() >= _FIELDS:
            yield value
        case Mapping():
            for inner in value.values():
                yield from _find_states(inner)
        case list() | tuple():
            for inner in value:
                yield from _find_states(inner)


class StateOrder:
    """Computes which samples the order of a state has, from the manifests on this machine.

    `Codes` and `Tallies`, numbers of samples and sums of their hashes, are explained in `order/audit.py`.

    Args:
        state: state of any rank.
        cache_dir: cache folder with the manifests, or None for that of the environment.

    Raises:
        ConfigError: a variable of the environment is invalid.
    """

    def __init__(self, state: State, cache_dir: Path | None) -> None:
        environment = Environment.read()
        self._state = state
        fallback_dirs = sorted(environment.runtime_dir.glob("selections/*"))
        self._folders = [(cache_dir or environment.cache_dir) / "manifests", *fallback_dirs]

    @property
    def names(self) -> Sequence[str]:
        """Names of the members of a mix; empty if the order is not that of a mix."""
        return self._state.spec.names

    def codes(self, epoch: int, samples: int) -> list[Codes]:
        """Returns the range of codes that each member has in an epoch, or an empty list if the dataset grows.

        Args:
            epoch: the epoch.
            samples: number of samples of a dataset alone. It is used if its manifest is gone, or if they are rows.
        """
        spec = self._state.spec
        return [Codes(*of) for of in spec.code_ranges(epoch, lambda: self._code_count(samples))]

    def _code_count(self, samples: int) -> int:
        """Returns the number of codes of a dataset alone: that of its manifest.

        It is `samples` if the manifest is gone, or if the samples are rows, of which only the number is compared.
        """
        spec = self._state.spec
        found = None if spec.counted_only else self._dataset(spec.orders[0].manifest_digest)
        return samples if found is None else found.manifest.samples

    def tallies(self, epoch: int, stop: int) -> Tallies | str:
        """Returns the tallies of the samples before position `stop` of an epoch, or a text why they are not known."""
        orders = self._state.spec.orders
        if kind := self._state.spec.counted_only:
            return f"of {kind} only the number is compared, not which samples came"
        datasets = [self._dataset(order.manifest_digest) for order in orders]
        if None in datasets:
            digest = orders[datasets.index(None)].manifest_digest
            return (
                f"the order cannot be computed: no manifest or selection {digest} in {self._folders[0]}; name the "
                "cache folder of the job with --cache-dir"
            )
        members = Members([data for data in datasets if data is not None])
        recipe = BatchRecipe(
            members=(),
            spec=self._state.spec,
            rank=0,
            world_size=1,
            global_batch=1,
            last_batch="fill",
            roots=(),
            entry=(epoch, 0),
        )
        order = Plans(recipe, members).plan(epoch).order
        codes = StreamCodes(recipe.spec, members)
        found = []
        for first in range(0, stop, _BLOCK):
            positions = np.arange(first, min(stop, first + _BLOCK), dtype=np.int64)
            fresh = positions[~order.repeats(positions)]
            found.append({tally.member: tally for tally in tallies(epoch, codes.encode(order.ordinals(fresh)))})
        return add_tallies(*found)

    def _dataset(self, digest: str) -> OpenedDataset | None:
        """Returns the dataset with this digest, that of a manifest or of a selection; None if none can be read."""
        for folder in self._folders:
            try:
                if (folder / digest).is_dir():
                    return OpenedDataset(Manifest.open(folder / digest), None)
                for path in folder.glob(f"*.{digest}.arrows"):
                    manifest = Manifest.open(self._folders[0] / path.name.partition(".")[0])
                    return OpenedDataset(manifest, Selection.open(manifest, digest, folder))
            except ManifestError:
                continue
        return None
