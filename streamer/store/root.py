"""Resolves what the url and the storage options of a root mean: where its requests go, and what signs them.

A root is the part of a url that one client serves: a bucket, a container, a server, a file system. The engine
(`engine/url_allowlist.py`), `store/__init__.py` and `tools/` make a `StoreRoot` for each. The stores read and sign by
it, and messages describe it by it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

from streamer.base.user_urls import LOGINS, login_key, logins_of, take_logins
from streamer.errors import AccessDeniedError, ConfigError, StoreError, StreamerError
from streamer.store.addresses.hosts import check_names, is_plain, is_region
from streamer.store.addresses.urls import Address, shown, split
from streamer.store.credentials import boto_keys
from streamer.store.credentials.key_ring import AnyRing, Issued, KeyRing
from streamer.store.options import ENDPOINT_VARIABLES, Options, Translation, translate
from streamer.store.places import BucketPlace, ask_region, find_place, partition

# Hosts of AWS. Only AWS tells the region of a bucket.
_AWS_HOST = re.compile(r"\.amazonaws\.(?:com|com\.cn|eu)$")


class StoreRoot:
    """Holds one root, its storage options, and what both mean.

    Args:
        address: parts of any url of the root.
        options: the user's storage options without logins.
        login: login of the urls, or "".
        variables: environment.

    Attributes:
        scheme: "s3", "https" and so on. It is "file" for a bare path.
        family: "s3", "gs", "az" or "http", or None if only fsspec or the disk serves the root.
        is_web: whether it is a web server, whose objects are named by whole urls.
        url: common beginning of its urls: "s3://bucket", "https://host:port" or "file://".
        prefix: the same with a slash.
        name: the url without its scheme: bucket, container@account or host.
        label: the url without secrets, for messages.
        login: login that its urls had, "user:password", or "" if they had none.
        options: the storage options without logins, as fsspec takes them.
        chosen: settings by url and options alone, which the client of a service may have chosen.
        settings: settings by which requests are made: `chosen`, and what the environment adds.
    """

    def __init__(
        self, address: Address, options: Options, login: str = "", variables: Mapping[str, str] = os.environ
    ) -> None:
        self.scheme = address.scheme
        self.family = address.family
        self.is_web = address.family == "http"
        self.url = address.root
        self.prefix = f"{address.root}/"
        self.name = address.root.partition("://")[2]
        self.label = shown(address.root)
        self.login = login
        self.options = options
        self.chosen = Translation() if self.family is None else translate(address, options)
        # The additions of the service's environment are kept apart: a client that sent url and options did not choose
        # them.
        complete = _add_variables(address, options, variables)
        self.settings = self.chosen if complete == options else translate(address, complete)
        # The places of a bucket of S3, by region.
        self._places: dict[str, BucketPlace] = {}
        # The regions that the store named, the present one last.
        self._moved: list[str] = []

    @classmethod
    def resolve(
        cls, url: str | Address, options: Options | None = None, variables: Mapping[str, str] = os.environ
    ) -> StoreRoot:
        """Resolves the root of a url, which may have a login, or of its parts.

        Args:
            url: any url of the root, or its parts.
            options: storage options, perhaps with logins of urls (`base/user_urls.py`). None means none.
            variables: environment.

        Raises:
            ConfigError: the url is empty or has no bucket, its login can be read in several ways, or an option cannot
                have such a value.
        """
        given = options or {}
        if isinstance(url, str):
            (url,), given = take_logins([url], given)
            url = split(url)
        login = logins_of(given).get(login_key(url.root), "")
        return cls(url, {name: value for name, value in given.items() if name != LOGINS}, login, variables)

    def __repr__(self) -> str:
        return f"StoreRoot({self.label!r}, {list(self._places.values())})"

    def key(self, url: str) -> str:
        """Returns the key of an object from its url.

        Most urls are not parsed for that, which saves 2 us of 200 for a small object.

        Raises:
            ConfigError: the url has a scheme without a bucket or host.
        """
        if not self.is_web and url.startswith(self.prefix):
            return url[len(self.prefix) :]
        return split(url).key

    # ------------------------------------------------------------ where it is

    @property
    def has_own_endpoint(self) -> bool:
        """Whether the options name an endpoint of S3."""
        return "endpoint" in self.settings.config

    def find_place(self, region: str | None) -> BucketPlace:
        """Returns address and region of a bucket of S3; the first call may read the AWS configuration.

        Args:
            region: region to use if neither the store nor the options name one. None means that of the configuration.

        Raises:
            ConfigError: options, AWS configuration and environment make no address.
        """
        known = self._moved[-1] if self._moved else str(self.settings.config.get("region") or region or "")
        if known not in self._places:
            place = find_place(self.url, self.settings, known or None)
            # An address that clients may read in two ways could lead to another host.
            if not is_plain(place.base):
                raise ConfigError(
                    f"{self.label}: options and AWS configuration make no address of a bucket: {shown(place.base)}",
                    field="storage_options",
                )
            self._places[known] = place
        return self._places[known]

    def may_move(self, region: str | None) -> bool:
        """Whether the bucket is at AWS, so may be in another region. `region` and ConfigError as in `find_place`."""
        if self.family != "s3" or self.has_own_endpoint:
            return False
        return _AWS_HOST.search(urlsplit(self.find_place(region).base).hostname or "") is not None

    def ask_region(self, region: str | None) -> str:
        """Asks AWS for the bucket's region, "" if it tells none; `region` as in `find_place`.

        Raises:
            ConfigError: as `find_place`.
            OSError: as `places.ask_region`.
        """
        place = self.find_place(region)
        return ask_region(place.base, self.settings.ca_file or place.ca_file)

    def move(self, region: str) -> bool:
        """Makes `find_place` give the place in a region that the store has named, from now on.

        Returns:
            Whether it does. False if the store had named the region before, it is no region, or the keys are not valid
            there.
        """
        partitions = {partition(place.region) for place in self._places.values()}
        if region in self._moved or not is_region(region, own_endpoint=False) or partitions != {partition(region)}:
            return False
        self._moved.append(region)
        return True

    def describe_chosen_endpoint(self, variables: Mapping[str, str] = os.environ) -> str:
        """Returns what the options say of where the root is, without credentials; "" if environment or cloud decide.

        The same url names another object elsewhere, so a shared cache keeps this text with the manifest.

        Raises:
            ConfigError: a name in url or options has not the form of its cloud (`check_names`).
        """
        if not self.options or self.family is None:
            return ""
        if self.is_web:  # one server has the sites of many, and this header says whose
            headers = cast("dict[str, str]", self.chosen.client.get("default_headers", {}))
            return next((f"host {text.lower()}" for name, text in headers.items() if name.lower() == "host"), "")
        config = self.chosen.config
        check_names(self.url, self.family, config)
        chosen: dict[str, object] = {}
        if given := config.get("endpoint") or config.get("base_url"):
            parts = urlsplit(str(given))
            chosen["endpoint"] = f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}{parts.path.rstrip('/')}"
        if self.family == "az" and "@" not in self.url:
            account = config.get("account_name")
            if account != variables.get("AZURE_STORAGE_ACCOUNT_NAME", variables.get("AZURE_STORAGE_ACCOUNT")):
                chosen["account"] = account
        if self.family == "s3" and not chosen:
            region = variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION") or ""
            if (named := config.get("region")) and partition(str(named)) != partition(region):
                chosen["partition"] = partition(str(named)) or "aws"
            chosen["profile"] = self.chosen.profile
            if self.chosen.boto.get("ignore_configured_endpoint_urls") is not None:
                chosen["configured endpoints"] = self.chosen.boto["ignore_configured_endpoint_urls"]
        return ", ".join(f"{name} {value}" for name, value in sorted(chosen.items()) if value)

    # ------------------------------------------------------------ what signs its requests

    def make_keyring(self) -> AnyRing | None:
        """Returns the ring of its credentials; None if no look for them is needed.

        That is so if requests are not signed, if the options of S3 or Azure have what signs them, or the environment
        has it for Azure, and for roots that are neither of S3, nor of Google, nor of Azure.

        The ring begins to look for credentials when it is first asked.
        """
        find = self.make_credentials_finder()
        return None if find is None else KeyRing(self.label, find)

    def make_credentials_finder(self) -> Callable[[], Issued[Any]] | None:
        """Returns the blocking function that looks for credentials once; None as `make_keyring`."""
        settings = self.settings
        if settings.config.get("skip_signature"):
            return None
        if self.family == "s3" and boto_keys.find_in_options(settings.config) is None:
            return partial(boto_keys.find, self.label, settings.profile)
        # The modules of the other clouds are imported when they are needed, as they take 2 ms (2026-11-24).
        if self.family == "gs":
            from streamer.store.credentials import google_tokens

            return partial(google_tokens.find, self.label, settings.config, user=settings.google_user)
        if self.family == "az":
            from streamer.store.credentials import azure_tokens

            if not azure_tokens.has_secret(settings.config):
                return partial(azure_tokens.find, self.label, settings.config)
        return None

    # ------------------------------------------------------------ what messages say of it

    def explain(self, error: StreamerError) -> StreamerError:
        """Returns an error whose message says more: a refusal names the credentials, a missing connection the address.

        Other errors are returned as they are. The message has no secrets.
        """
        if isinstance(error, AccessDeniedError):
            credentials, fixed = self.describe_credentials()
            text = error.message
            if error.details.get("status") in (401, 403):
                fact, _, advice = text.partition("; ")
                text = f"{fact} to a request {credentials}; {advice}"
            return AccessDeniedError(text, **{**error.details, "fixed": fixed})
        if isinstance(error, StoreError) and error.details.get("unreached"):
            return type(error)(f"{error.message}; tried {self.describe_endpoint()}", **error.details)
        return error

    def describe_credentials(self, variables: Mapping[str, str] = os.environ) -> tuple[str, bool]:
        """Returns words for what signs requests of a root with a `family`, and whether that stays the same."""
        settings = self.settings
        if self.is_web:
            unknown = "without credentials (a server that asks: headers in storage_options, or ~/.netrc)"
            return settings.login or unknown, False
        if settings.config.get("skip_signature"):
            return "without credentials (anonymous, as storage_options says)", True
        if settings.profile is not None:
            return f"with the profile {settings.profile!r}", False
        in_options = any(name in settings.config for name in _OPTIONS[str(self.family)])
        if in_options or settings.google_user is not None:
            return "with the credentials in storage_options", True
        if name := next((name for name in _VARIABLES[str(self.family)] if variables.get(name)), None):
            return f"with the credentials of the environment ({name})", name in _VALUES
        return "with the credentials that this machine has (default profile or role)", False

    def describe_endpoint(self, variables: Mapping[str, str] = os.environ) -> str:
        """Returns words for the address of its server, and the setting that names it, of a root with a `family`."""
        if self.is_web:
            return self.url
        if given := self.settings.config.get("endpoint") or self.settings.config.get("base_url"):
            return f"{given} (endpoint_url in storage_options)"
        if self.family != "s3":
            return _CLOUDS[str(self.family)]
        if name := next((name for name in ENDPOINT_VARIABLES if variables.get(name)), None):
            return f"{variables[name]} ({name} in the environment)"
        return (
            "AWS, because neither storage_options nor AWS_ENDPOINT_URL names an endpoint_url (MinIO, Ceph, R2 need one)"
        )


def _add_variables(address: Address, options: Options, variables: Mapping[str, str]) -> Options:
    """Returns options of Google and Azure with what the environment adds; obstore reads other variables by itself."""
    # The modules are imported here for the reason given in `StoreRoot.make_credentials_finder`.
    if address.family == "az" and "@" not in address.root:
        from streamer.store.credentials.azure_tokens import add_variables

        return add_variables(options, variables)
    if address.family == "gs":
        from streamer.store.credentials.google_tokens import add_emulator

        return add_emulator(options, variables)
    return options


# Settings, by family, that hold credentials.
_OPTIONS = {
    "s3": ("access_key_id",),
    "gs": ("service_account_key", "application_credentials"),
    "az": ("account_key", "sas_key", "client_secret"),
}
# Variables, by family, that name credentials or hold them.
_VARIABLES = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"),
    "az": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET"),
}
# Variables that hold the secret itself, so that it does not change.
_VALUES = ("AWS_ACCESS_KEY_ID", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET")
_CLOUDS = {
    "gs": "Google, because storage_options names no endpoint_url",
    "az": "Azure, because storage_options names no account_host or connection_string",
}
