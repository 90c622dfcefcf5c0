"""Finds which field of a document has its tokens, for the labels that packing makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from streamer.errors import DecodeError

# As tokenizers and packers call them.
_TOKENS = frozenset(["input_ids", "tokens", "token_ids", "ids", "input_tokens", "text_ids"])
# What tokenizers and packers put beside them, with one number for each token.
_NO_TOKENS = frozenset(
    [
        *("attention_mask", "token_type_ids", "special_tokens_mask", "position_ids", "positions", "segment_ids"),
        *("labels", "label", "targets", "mask", "loss_mask", "loss_weights", "weights", "weight", "word_ids"),
        *("completion_mask", "assistant_masks", "assistant_mask", "prompt_mask", "document_ids", "advantages"),
    ]
)


def find_token_field(fields: Mapping[str, npt.NDArray[Any]], named: Iterable[str] | None = None) -> str:
    """Returns the name of the field that has the tokens.

    Args:
        fields: The fields with one value for each token.
        named: Fields that the user has named; None if there are none.

    Raises:
        DecodeError: no field or several may have the tokens.
    """
    numbers = [name for name, array in fields.items() if array.dtype.kind in "iu"]
    known = [name for name in numbers if name in _TOKENS]
    if len(known) == 1:
        return known[0]
    others = [name for name in numbers if name not in _NO_TOKENS]
    if named is not None and (first := next(iter(named), None)) in others:
        return str(first)
    if len(others) == 1:
        return others[0]
    listed = ", ".join(f"{name} ({np.dtype(array.dtype)})" for name, array in fields.items())
    may = "none of them is known to have" if not others else f"{' and '.join(others)} may have"
    raise DecodeError(
        f"packing: labels are made of the tokens of a document, and of its fields with one value for each token "
        f"({listed}) {may} them: call the one that has them input_ids in the transform, or name it first in "
        "Packing(fields=...)"
    )
