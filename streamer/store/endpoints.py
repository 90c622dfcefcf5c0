"""Says which part of an object's place a client has chosen by its storage options. Pure.

The url of a bucket does not say where the bucket is: an endpoint, an account or another partition of a cloud is another
place, with other bytes under the same url. Who shares a cache must not take the one for the other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from streamer.store.hosts import check_names
from streamer.store.options import family, translate
from streamer.store.places import partition
from streamer.store.urls import split

Options = Mapping[str, object]


def named_endpoint(url: str, options: Options, variables: Mapping[str, str] = os.environ) -> str:
    """Returns what the options say of the place of a url's root; "" if the environment or the cloud decides.

    The text has no credentials: it is stored with the manifest.

    Raises:
        ConfigError: the url has no bucket, or a name in url or options is not one.
    """
    address = split(url)
    kind = family(address.scheme)
    if not options or kind is None or kind == "http":
        return ""
    outcome = translate(address, options)
    check_names(address, kind, outcome)
    chosen: dict[str, object] = {}
    for name in ("endpoint", "base_url"):
        if given := outcome.config.get(name):
            parts = urlsplit(str(given))
            chosen["endpoint"] = f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}{parts.path.rstrip('/')}"
    if kind == "az" and "@" not in address.root:
        account = outcome.config.get("account_name")
        if account != variables.get("AZURE_STORAGE_ACCOUNT_NAME", variables.get("AZURE_STORAGE_ACCOUNT")):
            chosen["account"] = account
    if kind == "s3" and not chosen:
        region = variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION") or ""
        if (named := outcome.config.get("region")) and partition(str(named)) != partition(region):
            chosen["partition"] = partition(str(named)) or "aws"
        chosen["profile"] = outcome.profile
        if outcome.boto.get("ignore_configured_endpoint_urls") is not None:
            chosen["configured endpoints"] = outcome.boto["ignore_configured_endpoint_urls"]
    return ", ".join(f"{name} {value}" for name, value in sorted(chosen.items()) if value)
