"""Says whether a manifest from a url is believed where it cannot be computed again."""

from __future__ import annotations

from streamer.engine.url_allowlist import UrlAllowlist
from streamer.errors import ManifestCorruptError
from streamer.manifest.table import Manifest
from streamer.store.urls import shown

# Among the details of the error.
OWNER_RULE = "manifests of blocks lie with their objects"


class Ownership:
    """Compares who may write a manifest with who may write its objects.

    How blocks are recoded depends on the facts in the manifest, which cannot be computed again without the data, and
    are not in the keys of its chunks: others who read the same objects would get what this manifest says.

    Attributes:
        is_one: whether they are the same, as far as this engine knows.
    """

    def __init__(self, allowlist: UrlAllowlist, url: str) -> None:
        self.is_one = True
        self._allowlist = allowlist
        self._url = url

    def check(self, manifest: Manifest) -> None:
        """Refuses a manifest of blocks that comes from elsewhere than its objects.

        Raises:
            ManifestCorruptError: it does.
        """
        urls = (manifest.object(number).url for number in range(manifest.objects))
        self.is_one = not self._allowlist.decides or self._allowlist.has_one_owner(self._url, urls)
        if manifest.recoded and not self.is_one:
            raise ManifestCorruptError(
                f"the manifest at {shown(self._url)} says how blocks of {shown(manifest.object(0).url)} are recoded, "
                "and does not lie in the same place: a shared service believes that only of what lies below the same "
                "url of [[datasets]], or in the same bucket; put the manifest there, or leave manifest= out",
                rule=OWNER_RULE,
            )
