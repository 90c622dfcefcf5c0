"""`streamer doctor`: reports what this machine has and lacks, and what to do about it."""

from __future__ import annotations

from typing import Literal, NamedTuple

# "optional" is not installed, and rarely needed; "problem" ends a job, "warning" slows it down or may end it.
State = Literal["ok", "optional", "warning", "problem"]


class Finding(NamedTuple):
    """A line of the report: the result of one check.

    Attributes:
        subject: subject of the check, in a word or two.
        fact: the result, with numbers; never a secret.
        advice: advice to the user; "" if there is none.
    """

    state: State
    subject: str
    fact: str
    advice: str = ""
