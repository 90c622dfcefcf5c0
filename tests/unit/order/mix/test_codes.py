"""Tests of the codes of samples of a mix, which have member, pass and ordinal in one number."""

from __future__ import annotations

import numpy as np

from streamer.order.mix import SampleCodes


def test_a_code_has_member_pass_and_sample() -> None:
    """Encoding and decoding of codes are inverse, for members of one sample to 10**12 and beyond 2**31 passes."""
    codes = SampleCodes([1, 7, 10**12])
    members, turns = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1 << 40, 3, 0, 99, 0])
    ordinals = np.array([0, 0, 6, 0, 10**12 - 1, 5])
    found = codes.encode(members, turns, ordinals)
    assert found.dtype == np.int64
    assert codes.members(found).tolist() == members.tolist()
    assert codes.turns(found).tolist() == turns.tolist()
    assert codes.ordinals(found).tolist() == ordinals.tolist()


def test_the_codes_of_the_first_pass_of_the_first_member_are_its_ordinals() -> None:
    """The code of a sample in the first pass of the first member is its ordinal, which can be looked up."""
    codes = SampleCodes([100])
    assert codes.encode(np.array([0]), np.array([0]), np.array([55])).tolist() == [55]
