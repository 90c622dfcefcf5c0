"""The folder beside the objects of a dataset: its manifest and the receipts of its shards; never data."""

BESIDE = ".streamer/"
_WITHIN = f"/{BESIDE}"


def is_beside(object_url: str, url: str) -> bool:
    """Whether an object found below `url` is in that folder."""
    return _WITHIN in object_url and _WITHIN not in f"{url}/"
