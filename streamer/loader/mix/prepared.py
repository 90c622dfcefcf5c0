"""A mix prepared for one batch size: members, order, state."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import blake2b

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.annotations.join import table_digest
from streamer.client.session import EpochSchedule, SessionPart, SessionSpec
from streamer.errors import Detail
from streamer.loader.contracts import PreparedStream
from streamer.loader.mix.plans import Integers, Members, MixPlans
from streamer.loader.mix.samples import MixMaker, MixRecipe
from streamer.loader.rank.connections import EngineConnections
from streamer.loader.rank.rank_stream import Identity, RankStream, SavedPlace
from streamer.loader.rank.step_session import Share
from streamer.loader.samples.maker import sample_key
from streamer.loader.skipping import Skipped
from streamer.order.mix import MixRequest, MixSource, MixSpec, MixState, SampleCodes, adopt

logger = logging.getLogger(__name__)


class MixInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What the order of a mix is made from, and what the engine needs of each member.

    Attributes:
        request: what the user asks for.
        sources: the members as the order sees them.
        part_options: the storage options of each member, encoded.
    """

    request: MixRequest
    sources: tuple[MixSource, ...]
    part_options: tuple[bytes, ...]


class MixPrepared(RankStream):
    """A mix prepared for one batch size. Used by one thread at a time.

    Args:
        connections: to the engine.
        recipe: of the samples.
        members: opened.
        inputs: of the order.
        identity: of the consumer.
    """

    _plans: MixPlans

    def __init__(
        self,
        connections: EngineConnections,
        recipe: MixRecipe,
        members: Members,
        inputs: MixInputs,
        identity: Identity,
    ) -> None:
        super().__init__(connections, identity, recipe)
        self._recipe = recipe
        self._members = members
        self._inputs = inputs
        self._plans = MixPlans(recipe.geometry, members)
        self.codes = SampleCodes([member.samples for member in members.each])

    def __repr__(self) -> str:
        return (
            f"MixPrepared({', '.join(self.names)}, order={self.spec.order_id}, global_batch={self.global_batch}, "
            f"rank={self.rank_config.rank}/{self.rank_config.world_size})"
        )

    @property
    def spec(self) -> MixSpec:
        """The order; a resumed state may replace parts of it."""
        return self._recipe.geometry.spec

    @property
    def names(self) -> list[str]:
        """The names of the members."""
        return [source.name for source in self._inputs.sources]

    @property
    def member_samples(self) -> list[int]:
        """Number of samples of each member."""
        return [member.samples for member in self._members.each]

    def samples_in(self, epoch: int) -> int:
        """Number of samples of an epoch, over all ranks, without repeats."""
        return self.spec.samples(epoch)

    @property
    def seed(self) -> int:
        """The seed of the mixing."""
        return self.spec.seed

    @property
    def mix(self) -> MixPrepared:
        """See PreparedStream.mix."""
        return self

    def sample_key(self, ordinal: int) -> str:
        """Path below the url of the member; for samples in containers, object and byte range."""
        number, index = self._locate(ordinal)
        member = self._members.each[number]
        return sample_key(member.manifest, int(member.to_manifest(np.array([index], np.int64))[0]))

    def sample_number(self, ordinal: int) -> int:
        """The number that `dataset[i]` takes: through the members laid end to end."""
        number, index = self._locate(ordinal)
        return sum(self.member_samples[:number]) + index

    def sample_label(self, ordinal: int) -> str:
        """Member, and the number that `dataset[member][i]` takes."""
        number, index = self._locate(ordinal)
        return f"{self.names[number]}/{index}"

    def skipped(self, ordinal: int, cause: str) -> Skipped:
        """The record of a sample that was replaced."""
        number, index = self._locate(ordinal)
        return Skipped(index, self.sample_key(ordinal), cause, self.names[number])

    def _locate(self, code: int) -> tuple[int, int]:
        """Number of the member, and of the sample in it."""
        codes = np.array([code], np.int64)
        return int(self.codes.members(codes)[0]), int(self.codes.ordinals(codes)[0])

    def facts(self) -> dict[str, Detail]:
        """The values that must be equal on all ranks."""
        return {
            **self.spec.facts(),
            "world_size": self.rank_config.world_size,
            "global_batch": self.global_batch,
            "last_batch": self.last_batch,
            "annotations": " ".join(str(table_digest(member.rules.joined)) for member in self._recipe.members),
        }

    def recipe(self) -> MixRecipe:
        """The recipe for worker processes."""
        return self._recipe

    def maker(self) -> MixMaker:
        """Makes samples in this process."""
        return MixMaker(self._members, self._recipe)

    def ordinals(self, epoch: int, batch: int) -> Integers:
        """This rank's samples of a batch, as codes."""
        return self.plan(epoch).batch(batch).ordinals

    def drawn(self, epoch: int, batch: int) -> Integers:
        """(members,) samples of each member before batch `batch` of an epoch, over all epochs and ranks."""
        order = self._plans.order(epoch)
        here = order.drawn(min(self.plan(epoch).position(batch), order.samples))
        return np.array(self.spec.drawn(epoch), np.int64) + here

    # ------------------------------------------------------------ state

    def state(self, epoch: int, batch: int) -> dict[str, object]:
        """The state to save after `batch` batches of `epoch`."""
        return MixState(self.spec, epoch, self.plan(epoch).position(batch), self.global_batch).to_dict()

    def follow(self, before: PreparedStream, epoch: int) -> None:
        """Continues at `epoch` where the mix was before its data changed: `before` has delivered all epochs before."""
        if epoch > 0:
            self.adopt(before.state(epoch - 1, before.plan(epoch - 1).batches))

    def sources(self, epoch: int, batch: int) -> npt.NDArray[np.int16]:
        """(samples,) number of the member of each sample of this rank's batch."""
        return self.codes.members(self.ordinals(epoch, batch)).astype(np.int16)

    def _adopt(self, state: Mapping[str, object], strict: bool) -> SavedPlace:
        inputs = self._inputs
        if strict:
            saved = MixState.from_dict(state)
            saved.check(inputs.request.spec(inputs.sources, self.global_batch, like=saved.spec))
        else:
            adopted = adopt(state, inputs.request, inputs.sources, self.global_batch)
            for note in adopted.notes if self.rank_config.rank == 0 else ():
                logger.warning("%s", note)
            saved = MixState(adopted.spec, adopted.spec.origin_epoch, 0, self.global_batch)
        self._replace_geometry(spec=saved.spec)
        resume = saved.resume(self.global_batch, self.last_batch)
        return SavedPlace(saved.epoch, saved.position, resume)

    def _enter_at(self, epoch: int, start: int) -> None:
        self._replace_geometry(entry=(epoch, start))

    def _replace_geometry(self, **parts: object) -> None:
        geometry = msgspec.structs.replace(self._recipe.geometry, **parts)
        self._recipe = msgspec.structs.replace(self._recipe, geometry=geometry)
        self._plans = MixPlans(geometry, self._members)

    # ------------------------------------------------------------ sessions

    def _values(self, epoch: int) -> tuple[float, ...]:
        return self.spec.passes(epoch)

    def _session_spec(self, epoch: int, share: Share, schedule: EpochSchedule) -> SessionSpec:
        rank, worker = self.rank_config, f" worker {share.worker} of {share.workers}"
        return SessionSpec(
            dataset=_common_digest(self._members),
            consumer=f"rank {rank.rank}{worker if share.workers > 1 else ''}",
            order_id=self.spec.order_id,
            global_batch=self.global_batch,
            world_size=rank.world_size,
            # Workers of a plain DataLoader resume each at its own position: there is nothing to compare.
            start=self.plan(epoch).position(share.first) if share.workers == 1 else 0,
            stream=self._identity.stream,
            sharers=rank.world_size // max(1, rank.nodes) * share.workers,
            parts=self._parts(epoch, schedule),
        )

    def _parts(self, epoch: int, schedule: EpochSchedule) -> tuple[SessionPart, ...]:
        opened = open_bytes_by_member(schedule, self._members).tolist()
        return tuple(
            SessionPart(
                dataset=member.manifest.digest, name=source.name, options=options, value=value, open_bytes=open_bytes
            )
            for member, source, options, value, open_bytes in zip(
                self._members.each,
                self._inputs.sources,
                self._inputs.part_options,
                self.spec.passes(epoch),
                opened,
                strict=True,
            )
        )


def open_bytes_by_member(schedule: EpochSchedule, members: Members) -> Integers:
    """(members,) the largest number of bytes of each member that are open at the same time."""
    sizes = members.chunk_bytes[schedule.chunk]
    owner = np.searchsorted(np.array(members.first_chunks), schedule.chunk, side="right") - 1
    # As in `open_bytes` of one dataset, member by member: the changes of each add up to 0 where the next one begins.
    changes = np.concatenate([sizes, -sizes])
    goes = np.repeat([0, 1], len(sizes))
    owners = np.tile(owner, 2)
    order = np.lexsort((goes, np.concatenate([schedule.first, schedule.last]), owners))
    opened = np.cumsum(changes[order])
    most = np.zeros(len(members.each), np.int64)
    np.maximum.at(most, owners[order], opened)
    return most


def _common_digest(members: Members) -> str:
    """A name for the data of all members together, the same on every rank."""
    digests = " ".join(member.manifest.digest for member in members.each)
    return blake2b(digests.encode(), digest_size=16).hexdigest()
