"""Simulates a consumer of several datasets against the cache policy, without data.

Time is in ticks, as in `cache_simulation`: in each one the consumer may use one chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.cache.policy.answers import Admit, Wait
from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.sessions import SessionOpening
from streamer.cache.policy.table import charge

CHUNK_BYTES = 8 << 20
CHUNK_COST = charge(CHUNK_BYTES)


class MixMember(msgspec.Struct, frozen=True):
    """One dataset of the mix.

    Attributes:
        dataset: added to the policy before.
        chunks: how many it has.
        passes: over it in one epoch.
        open_chunks: uses of this member during which a chunk stays open.
    """

    dataset: str
    chunks: int
    passes: float
    open_chunks: int


class MixUses(msgspec.Struct):
    """What a mix uses in order, and the result: one entry per use.

    Attributes:
        at: when, in epochs. member: whose. chunk: its number in the member. pass_number: the member's pass.
        missed: it was fetched for this use.
    """

    at: NDArray[np.float64]
    member: NDArray[np.int64]
    chunk: NDArray[np.int64]
    pass_number: NDArray[np.int64]
    missed: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.at)

    def hit_rate(self, from_epoch: float) -> float:
        """Share of uses from an epoch on that hit, in chunks."""
        return 1.0 - float(self.missed[self.at >= from_epoch].mean())

    def peak_misses(self, from_epoch: float, share: float = 0.02) -> float:
        """The most misses in any `share` of an epoch, as a multiple of the mean."""
        counts = np.bincount((self.at[self.missed & (self.at >= from_epoch)] / share).astype(np.int64))
        counts = counts[round(from_epoch / share) :]
        return float(counts.max() / counts.mean())


# The mixes that the design was measured with.
MIXES = {
    "2000 (.9) + 200 (3)": [MixMember("m0", 2000, 0.9, 32), MixMember("m1", 200, 3.0, 8)],
    "2000 (.5) + 600 (1) + 120 (4)": [
        MixMember("m0", 2000, 0.5, 32),
        MixMember("m1", 600, 1.0, 16),
        MixMember("m2", 120, 4.0, 8),
    ],
    "five, 2000 (.6) ... 125 (4)": [
        MixMember("m0", 2000, 0.6, 32),
        MixMember("m1", 1000, 1.0, 16),
        MixMember("m2", 500, 1.6, 16),
        MixMember("m3", 250, 2.5, 8),
        MixMember("m4", 125, 4.0, 8),
    ],
}


def draw_uses(members: Sequence[MixMember], epochs: int, seed: int = 0) -> MixUses:
    """Each member's passes are fresh permutations, spread evenly over the time; pass boundaries go on over epochs."""
    random = np.random.default_rng(seed)
    columns = [_member_uses(index, member, epochs, random) for index, member in enumerate(members)]
    at, member, chunk, pass_number = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(at, kind="stable")
    return MixUses(at[order], member[order], chunk[order], pass_number[order], np.zeros(len(at), np.bool_))


def _member_uses(
    index: int, member: MixMember, epochs: int, random: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    uses = round(member.chunks * member.passes * epochs)
    passes = max(1, -(-uses // member.chunks))
    chunk = np.concatenate([random.permutation(member.chunks) for _ in range(passes)])[:uses]
    at = (np.arange(uses) + random.random(uses)) / (member.chunks * member.passes)
    return at, np.full(uses, index), chunk, np.arange(uses) // member.chunks


class MixSimulation:
    """One consumer of a mix and one policy.

    Args:
        policy: with the datasets added; the consumer's sessions are opened here.
        members: the mix.
        uses: as `draw_uses` returns them; the misses are entered.
        lookahead: in uses of the whole mix.
        chunk_bytes: charged bytes of a chunk, of every member.
        fetch_ticks: duration of a fetch.
        values: of the members; None: their passes.

    Attributes:
        waited_ticks: without progress; ticks: in all.
    """

    def __init__(
        self,
        policy: CachePolicy,
        members: Sequence[MixMember],
        uses: MixUses,
        *,
        lookahead: int,
        chunk_bytes: int,
        fetch_ticks: int = 4,
        values: Sequence[float] | None = None,
    ) -> None:
        self.ticks = self.waited_ticks = 0
        self._policy = policy
        self._members = members
        self._uses = uses
        self._lookahead = lookahead
        self._fetch_ticks = fetch_ticks
        self._fetching: deque[tuple[int, bytes]] = deque()
        self._asked = self._announced = self._place = 0
        self._open: list[deque[int]] = [deque() for _ in members]
        self._pass = [-1] * len(members)
        policy.open_sessions("mix", self._openings(values, chunk_bytes))

    def _openings(self, values: Sequence[float] | None, chunk_bytes: int) -> list[SessionOpening]:
        rates = [member.chunks * member.passes for member in self._members]
        ahead = [int(self._lookahead * rate / sum(rates) + 1) * chunk_bytes for rate in rates]
        most = max(member.passes for member in self._members)
        worth = values if values is not None else [member.passes / most for member in self._members]
        return [
            SessionOpening(f"mix/{index}", member.dataset, member.open_chunks * chunk_bytes, ahead[index], worth[index])
            for index, member in enumerate(self._members)
        ]

    def run(self) -> None:
        """Simulates all uses.

        Raises:
            RuntimeError: no progress is possible any more.
        """
        while self._place < len(self._uses):
            while self._fetching and self._fetching[0][0] <= self.ticks:
                self._policy.publish(self._fetching.popleft()[1])
            self._start_pass()
            self._ask_ahead()
            if not self._use():
                self.waited_ticks += 1
                if not self._fetching:
                    raise RuntimeError(f"deadlock at tick {self.ticks}: {self._policy!r}")
            self.ticks += 1

    def _start_pass(self) -> None:
        """The member's pass begins with its first use."""
        place, uses = self._place, self._uses
        member, pass_number = int(uses.member[place]), int(uses.pass_number[place])
        if pass_number != self._pass[member]:
            self._pass[member] = pass_number
            ahead = (uses.member[place:] == member) & (uses.pass_number[place:] == pass_number)
            self._policy.start_epoch(f"mix/{member}", uses.chunk[place:][ahead])

    def _ask_ahead(self) -> None:
        last = min(len(self._uses), self._place + self._lookahead + 1)
        while self._asked < last:
            if self._announced == self._asked:
                self._policy.look_ahead(self._session(self._asked), int(self._uses.chunk[self._asked]))
                self._announced += 1
            if not self._need(self._asked):
                return
            self._asked += 1

    def _need(self, place: int) -> bool:
        blocking = place == self._place
        answer = self._policy.need(self._session(place), int(self._uses.chunk[place]), blocking=blocking)
        if isinstance(answer, Admit):
            self._uses.missed[place] = True
            self._fetching.append((self.ticks + self._fetch_ticks, answer.key))
        return not (isinstance(answer, Wait) and not answer.fetching)

    def _use(self) -> bool:
        place = self._place
        if self._asked <= place:
            return False
        chunk, opened = int(self._uses.chunk[place]), self._open[self._uses.member[place]]
        if not self._policy.open(self._session(place), chunk):
            self._need(place)  # it is on its way, or was evicted for a blocking request
            return False
        opened.append(chunk)
        if len(opened) >= self._members[self._uses.member[place]].open_chunks:
            self._policy.release(self._session(place), opened.popleft())
        self._place += 1
        return True

    def _session(self, place: int) -> str:
        return f"mix/{self._uses.member[place]}"


def static_bound(members: Sequence[MixMember], kept_chunks: float) -> float:
    """The largest share of hits of any fixed choice of so many chunks: those of the most passes first."""
    hits = needs = 0.0
    for member in sorted(members, key=lambda one: one.passes, reverse=True):
        kept = min(member.chunks, kept_chunks)
        kept_chunks -= kept
        hits += kept * member.passes
        needs += member.chunks * member.passes
    return hits / needs


def play(
    members: Sequence[MixMember],
    limit_bytes: int,
    epochs: int,
    *,
    lookahead: int = 48,
    values: Sequence[float] | None = None,
) -> tuple[CachePolicy, MixUses, MixSimulation]:
    """Runs some epochs of a mix of chunks of 8 MiB against a new policy.

    Args:
        members: of the mix.
        limit_bytes: of the cache.
        epochs: how many.
        lookahead: uses that are requested ahead.
        values: of the members; None: their passes.
    """
    policy, random = CachePolicy(limit_bytes), np.random.default_rng(3)
    for member in members:
        keys = random.integers(0, 256, (member.chunks, 16), dtype=np.uint8)
        policy.add_dataset(member.dataset, np.full(member.chunks, CHUNK_BYTES), keys)
    uses = draw_uses(members, epochs)
    simulation = MixSimulation(policy, members, uses, lookahead=lookahead, chunk_bytes=CHUNK_COST, values=values)
    simulation.run()
    return policy, uses, simulation
