"""Dtypes by their numbers in the files of LitData; None: what has no numbers that numpy could read."""

from __future__ import annotations

# Those behind the last one are objects and texts.
LITDATA_NUMPY = ("|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16", "|b1")
# 10 is bfloat16.
LITDATA_TORCH = (
    *("<f4", "<f4", "<f8", "<f8", "<c8", "<c8", "<c16", "<c16", "<f2", "<f2", None, "|u1", "|i1", "<i2", "<i2"),
    *("<i4", "<i4", "<i8", "<i8", "|b1", "<u2"),
)


def dtype_of(dtypes: tuple[str | None, ...], number: int) -> str:
    """The dtype of a number.

    Raises:
        ValueError: it has none.
    """
    found = dtypes[number] if 0 <= number < len(dtypes) else None
    if found is None:
        raise ValueError(f"dtype {number} has no numbers that numpy can read without a pickle")
    return found
