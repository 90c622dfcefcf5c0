"""Matches urls with globs, in a time that grows with the length of the url alone. No I/O.

Used by `store/addresses/patterns.py`. Globs come from clients and urls from buckets, and neither may choose how long a
comparison takes. Python's regular expressions try `*a*a*a*a*b` in exponentially many ways. Here an automaton follows
all ways at once, as bits of a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from streamer.errors import ConfigError

# Matches the first letter of a glob's wildcard.
GLOB = re.compile(r"[*?\[]")
# The globs of one url may have this many letters behind their first wildcards. A comparison then takes at most 0.005 s,
# for a key of 1,024 letters that are all new to the automata (2026-11-28).
MAX_LETTERS = 1 << 16
# An automaton remembers this many transitions, divided by its size in letters: about 1 MB.
_MOST_REMEMBERED = 1 << 20


class _Class(msgspec.Struct, frozen=True):
    """Holds the letters between brackets of a glob (`[a-z]`, `[!0]`).

    Attributes:
        inside: the text between the brackets, without the sign of a negation.
        negated: whether it matches all other letters.
    """

    inside: str
    negated: bool

    def matches(self, letter: str) -> bool:
        """Whether a letter fits; a slash never does."""
        if letter == "/":
            return False
        inside = self.inside
        i = 0
        while i < len(inside):
            is_range = i + 2 < len(inside) and inside[i + 1] == "-"
            last = inside[i + 2] if is_range else inside[i]
            if inside[i] <= letter <= last:
                return not self.negated
            i += 3 if is_range else 1
        return self.negated


def _tokens(glob: str) -> Iterator[str]:
    """Yields the parts of a glob: `**/`, `**`, `*`, `?`, `[...]` and single letters."""
    i = 0
    while i < len(glob):
        length = 1
        if glob.startswith("**", i):
            length = 3 if glob.startswith("**/", i) else 2
        elif glob[i] == "[" and (end := glob.find("]", i + 2)) > 0:
            length = end + 1 - i
        yield glob[i : i + length]
        i += length


class _AutomatonState(dict[str, "_AutomatonState"]):
    """Maps letters to the next states; a next state is computed when it is first needed.

    Attributes:
        owner: the automaton.
        bits: the places of the globs that are reached in this state.
    """

    __slots__ = ("bits", "owner")

    def __init__(self, owner: Automaton, bits: int) -> None:
        super().__init__()
        self.owner = owner
        self.bits = bits

    def __missing__(self, letter: str) -> _AutomatonState:
        return self.owner.follow(self, letter)


class Automaton:
    """Compares a text with several globs at once.

    Each place of a glob is a bit. A letter moves the bits whose place it fits, and keeps those of stars. States are
    remembered, so that most letters cost one look-up.

    Args:
        globs: the globs; `*` and `?` match no slash, `**` matches any text.

    Attributes:
        globs: the globs as a tuple.
    """

    def __init__(self, globs: Sequence[str]) -> None:
        self.globs = tuple(globs)
        self._letters: dict[str, int] = {}
        self._classes: list[tuple[int, _Class]] = []
        self._fitting: dict[str, int] = {}
        # The places of `**`, of `*`, and of `?`.
        self._any = 0
        self._any_but_slash = 0
        self._any_once = 0
        # Places that lead to later ones without a letter.
        self._skips: dict[int, int] = {}
        self._skipping = 0
        self._finals: list[int] = []
        begin = 0
        size = 0
        for glob in self.globs:
            begin |= 1 << size
            size = self._add(glob, size)
            self._finals.append(1 << size - 1)
        self._final = sum(self._finals)
        self._most = max(64, _MOST_REMEMBERED // (size + 64))
        self._remembered = 0
        self._states: dict[int, _AutomatonState] = {}
        self._start = self._state(self._close(begin))

    def __repr__(self) -> str:
        return f"Automaton({len(self.globs)} globs, {len(self._states)} states)"

    def find_matches(self, text: str) -> int:
        """Returns a bit for each glob that matches the whole text; 0 if none does."""
        state = self._start
        for letter in text:
            if not state.bits:
                return 0
            state = state[letter]
        return state.bits & self._final

    def list_without_match(self, find_matches: int) -> list[str]:
        """Returns the globs that did not match, given what `find_matches` returned, joined by `|` for several texts."""
        return [glob for glob, final in zip(self.globs, self._finals, strict=True) if not final & find_matches]

    def follow(self, state: _AutomatonState, letter: str) -> _AutomatonState:
        """Computes the state that a letter leads to, and remembers it; forgets all states if there are too many."""
        bits = state.bits
        stay = bits & (self._any if letter == "/" else self._any | self._any_but_slash)
        if self._remembered >= self._most:
            # All states are forgotten, and their next states, too.
            for known in self._states.values():
                known.clear()
            self._states = {self._start.bits: self._start}
            self._fitting.clear()
            self._remembered = 0
        self._remembered += 1
        following = state[letter] = self._state(self._close((bits & self._fits(letter)) << 1 | stay))
        return following

    # ------------------------------------------------------------ inside

    def _add(self, glob: str, place: int) -> int:
        """Adds the places of a glob from the number `place` on; returns the first number behind them."""
        for token in _tokens(glob):
            bit = 1 << place
            if token == "**/":  # nothing, or anything that ends with a slash
                self._skip(place, bit << 1 | bit << 3)
                self._any |= bit << 1
                self._skip(place + 1, bit << 2)
                self._letters["/"] = self._letters.get("/", 0) | bit << 2
                place += 2
            elif token in ("*", "**"):
                self._skip(place, bit << 1)
                if token == "*":
                    self._any_but_slash |= bit
                else:
                    self._any |= bit
            elif token == "?":
                self._any_once |= bit
            elif len(token) > 1:
                negated = len(token) > 3 and token[1] in "!^"
                self._classes.append((bit, _Class(token[2 if negated else 1 : -1], negated)))
            else:
                self._letters[token] = self._letters.get(token, 0) | bit
            place += 1
        return place + 1

    def _skip(self, place: int, to: int) -> None:
        """Lets a place lead to others (bits of `to`) without a letter."""
        self._skips[1 << place] = to
        self._skipping |= 1 << place

    def _close(self, bits: int) -> int:
        """Returns the bits with those of the places that are reached without a letter.

        One pass suffices, because these places are behind those that lead to them.
        """
        pending = bits & self._skipping
        while pending:
            first = pending & -pending
            more = self._skips[first]
            bits |= more
            pending = (pending ^ first) | more & self._skipping
        return bits

    def _fits(self, letter: str) -> int:
        """Returns the bits of all places that a letter fits."""
        if (known := self._fitting.get(letter)) is not None:
            return known
        fitting = self._letters.get(letter, 0)
        if letter != "/":
            fitting |= self._any_once
        for bit, letters in self._classes:
            if letters.matches(letter):
                fitting |= bit
        self._fitting[letter] = fitting
        return fitting

    def _state(self, bits: int) -> _AutomatonState:
        state = self._states.get(bits)
        if state is None:
            state = self._states[bits] = _AutomatonState(self, bits)
        return state


class GlobSet:
    """Compares urls with many globs, most of which differ only before their first wildcard: `{0000..9999}/*.tar`.

    The letters before the first wildcard are looked up in a dict, and globs with equal rests share an automaton.

    Args:
        globs: the globs, each once.

    Raises:
        ConfigError: the rests that differ have more than `MAX_LETTERS` letters together.
    """

    def __init__(self, globs: Iterable[str]) -> None:
        rests: dict[str, list[str]] = {}
        for glob in globs:
            stem = GLOB.split(glob, maxsplit=1)[0]
            rests.setdefault(stem, []).append(glob[len(stem) :])
        different = set(map(tuple, rests.values()))
        letters = sum(len(glob) for globs in different for glob in globs)
        if letters > MAX_LETTERS:
            raise ConfigError(
                f"globs of {letters:,} letters behind their first *, ? or [; at most {MAX_LETTERS:,} are compared: "
                "write * instead of the braces that stand behind another *",
                field="url",
            )
        shared = {key: Automaton(key) for key in different}
        self._automata = {stem: shared[tuple(rest)] for stem, rest in rests.items()}
        self._lengths = sorted({len(stem) for stem in self._automata})

    def __repr__(self) -> str:
        return f"GlobSet({len(self._automata)} stems)"

    def matches(self, url: str) -> bool:
        """Whether one of the globs matches the whole url."""
        return any(automaton.find_matches(rest) for _, automaton, rest in self._candidates(url))

    def list_without_match(self, urls: Iterable[str]) -> list[str]:
        """Returns the globs that match none of the urls."""
        matched = dict.fromkeys(self._automata, 0)
        for url in urls:
            for stem, automaton, rest in self._candidates(url):
                matched[stem] |= automaton.find_matches(rest)
        return [
            stem + rest
            for stem, automaton in self._automata.items()
            for rest in automaton.list_without_match(matched[stem])
        ]

    def _candidates(self, url: str) -> Iterator[tuple[str, Automaton, str]]:
        """Yields each beginning of the url that is one of globs, the automaton of their rests, and the url's rest."""
        for length in self._lengths:
            stem = url[:length]
            if (automaton := self._automata.get(stem)) is not None:
                yield stem, automaton, url[length:]
