"""What a check of `streamer doctor` says."""

from __future__ import annotations

from typing import Literal, NamedTuple

# "optional" is not installed, and not needed for most; "problem" ends a job, "warning" slows it down or may end it.
State = Literal["ok", "optional", "warning", "problem"]


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        state: how serious it is.
        subject: what was looked at, in a word or two.
        fact: what was found, with numbers; never a secret.
        advice: what to do; "" where nothing is.
    """

    state: State
    subject: str
    fact: str
    advice: str = ""
