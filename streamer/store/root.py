"""Resolves a root once: what its url and its storage options mean is read here, and nowhere else.

A root is the part of a url that one client serves: a bucket, a container, a server, a file system. Everybody who has
to know where its requests go, what signs them or what it is called in messages takes a `StoreRoot`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

from streamer.base.logins import LOGINS, logins_of, take_logins
from streamer.errors import AccessDeniedError, ConfigError, StoreError, StreamerError
from streamer.store.addresses.hosts import check_names, is_plain, is_region
from streamer.store.addresses.urls import Address, shown, split
from streamer.store.credentials import boto_keys
from streamer.store.credentials.key_ring import AnyRing, Issued, KeyRing
from streamer.store.options import ENDPOINT_VARIABLES, Options, Translation, translate
from streamer.store.places import BucketPlace, ask_region, find_place, partition

# Hosts of AWS, which alone tells the region of a bucket.
_AWS_HOST = re.compile(r"\.amazonaws\.(?:com|com\.cn|eu)$")


class StoreRoot:
    """One root with the options that lead to it.

    Attributes:
        scheme: "s3", "https", ...; "file" for a bare path.
        family: "s3", "gs", "az" or "http", whose options have counterparts; None if only fsspec or the disk serves it.
        is_web: whether it is a web server, whose objects are named by whole urls.
        url: common beginning of its urls, "s3://bucket", "https://host:port" or "file://".
        prefix: the same with a slash.
        name: what stands behind the scheme: bucket, container@account or host.
        label: what it is called in messages.
        login: the login that its urls had, "user:password"; "" if they had none.
        options: the storage options without logins, as fsspec takes them.
        chosen: the meaning of url and options alone, which their sender has chosen.
        settings: the same together with what the environment adds; requests are made by it.
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
        # The chosen ones are judged alone: what the operator's environment names is not the choice of a client.
        complete = _add_variables(address, options, variables)
        self.settings = self.chosen if complete == options else translate(address, complete)
        # A bucket of S3 has places, by region, and the store may name regions.
        self._places: dict[str, BucketPlace] = {}
        self._moved: list[str] = []

    @classmethod
    def resolve(
        cls, url: str | Address, options: Options | None = None, variables: Mapping[str, str] = os.environ
    ) -> StoreRoot:
        """Resolves the root of a url, which may have a login, or of its parts.

        Raises:
            ConfigError: an empty url, one without a bucket, a login that can be read in several ways, or an option
                that can have no such value.
        """
        given = options or {}
        if isinstance(url, str):
            (url,), given = take_logins([url], given)
            url = split(url)
        login = logins_of(given).get(url.root, "")
        return cls(url, {name: value for name, value in given.items() if name != LOGINS}, login, variables)

    def __repr__(self) -> str:
        return f"StoreRoot({self.label!r}, {list(self._places.values())})"

    def key(self, url: str) -> str:
        """Returns the name of an object in its store. Most urls need no parsing: 2 us of 200 for a small object."""
        if not self.is_web and url.startswith(self.prefix):
            return url[len(self.prefix) :]
        return split(url).key

    # ------------------------------------------------------------ where it is

    @property
    def has_own_endpoint(self) -> bool:
        """Whether options name the endpoint of S3."""
        return "endpoint" in self.settings.config

    def find_place(self, region: str | None) -> BucketPlace:
        """Returns address and region of a bucket of S3; the first call may read the AWS configuration.

        Args:
            region: Region if neither the options nor the store name one. By default that of the configuration.

        Raises:
            ConfigError: options or AWS configuration do not make an address.
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
        """Whether AWS can say that the bucket is in another region: no other store has more than one."""
        if self.family != "s3" or self.has_own_endpoint:
            return False
        return _AWS_HOST.search(urlsplit(self.find_place(region).base).hostname or "") is not None

    def ask_region(self, region: str | None) -> str:
        """Asks AWS as `places.ask_region` does, at the place of a region."""
        place = self.find_place(region)
        return ask_region(place.base, self.settings.ca_file or place.ca_file)

    def move(self, region: str) -> bool:
        """Goes to the region that the store names.

        Returns:
            False if it was known already, or if the present keys are not valid there.
        """
        partitions = {partition(place.region) for place in self._places.values()}
        if region in self._moved or not is_region(region, own_endpoint=False) or partitions != {partition(region)}:
            return False
        self._moved.append(region)
        return True

    def describe_chosen_endpoint(self, variables: Mapping[str, str] = os.environ) -> str:
        """Returns what the options say of the root's place; "" if the environment or the cloud decides.

        The same url is another object at another place, so a shared cache keeps this text with the manifest. It has no
        credentials.

        Raises:
            ConfigError: a name in url or options is not one.
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

    def make_key_ring(self) -> AnyRing | None:
        """Returns the ring of its credentials, or None if requests are not signed or the options have what signs them.

        It does not look for credentials yet.
        """
        find = self.make_credentials_finder()
        return None if find is None else KeyRing(self.label, find)

    def make_credentials_finder(self) -> Callable[[], Issued[Any]] | None:
        """Returns the function that looks for credentials once, or None as `make_ring` does."""
        settings = self.settings
        if settings.config.get("skip_signature"):
            return None
        if self.family == "s3" and boto_keys.find_in_options(settings.config) is None:
            return partial(boto_keys.find, self.label, settings.profile)
        # The others are imported when they are needed: 2 ms of an engine's start (2026-11-24).
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
        """Returns the same error; a refusal names the credentials, a missing connection the address. Never a secret."""
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
        """Describes what signs requests, and says whether it stays the same until this process ends."""
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
        """Describes the address, and the setting that names it."""
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
    """Adds what the environment says to the options of Google and Azure; obstore reads other variables by itself."""
    # Imported here: see `StoreRoot.make_credentials_finder`.
    if address.family == "az" and "@" not in address.root:
        from streamer.store.credentials.azure_tokens import add_variables

        return add_variables(options, variables)
    if address.family == "gs":
        from streamer.store.credentials.google_tokens import add_emulator

        return add_emulator(options, variables)
    return options


_OPTIONS = {
    "s3": ("access_key_id",),
    "gs": ("service_account_key", "application_credentials"),
    "az": ("account_key", "sas_key", "client_secret"),
}
_VARIABLES = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"),
    "az": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET"),
}
# Variables that contain a secret, not its place.
_VALUES = ("AWS_ACCESS_KEY_ID", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET")
_CLOUDS = {
    "gs": "Google, because storage_options names no endpoint_url",
    "az": "Azure, because storage_options names no account_host or connection_string",
}
