"""A result of a check of `streamer doctor`."""

from __future__ import annotations

from typing import Literal, NamedTuple

# "optional" is not installed, and rarely needed; "problem" ends a job, "warning" slows it down or may end it.
State = Literal["ok", "optional", "warning", "problem"]


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        subject: subject of the check, in a word or two.
        fact: the result, with numbers; never a secret.
        advice: advice to the user; "" if there is none.
    """

    state: State
    subject: str
    fact: str
    advice: str = ""
