"""User code as jobs have it, for `start.py`: a transform and a collate function that import torch when they run."""

from __future__ import annotations

from collections.abc import Sequence

Sample = dict[str, object]


def transform(sample: Sample) -> Sample:
    """Adds a tensor; imports torch inside, as code that is shared with scripts often does."""
    import torch

    sample["length"] = torch.tensor(len(sample["jpg"]))  # type: ignore[arg-type]
    return sample


class Collate:
    """Pads nothing and decodes nothing: what it costs is what torch costs."""

    def __call__(self, samples: Sequence[Sample]) -> Sample:
        """Samples -> columns of bytes, and a tensor of lengths."""
        import torch

        columns: Sample = {name: [sample[name] for sample in samples] for name in samples[0]}
        columns["length"] = torch.stack([sample["length"] for sample in samples])  # type: ignore[misc]
        return columns
