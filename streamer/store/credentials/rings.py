"""Decides which roots need credentials that neither the options nor obstore's own chain have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from streamer.store.addresses.urls import Address, shown
from streamer.store.credentials import boto_keys
from streamer.store.credentials.key_ring import AnyRing, Issued, KeyRing
from streamer.store.options import Translation, family

Find = Callable[[], Issued[Any]]


def ring_of(address: Address, translation: Translation) -> AnyRing | None:
    """The ring of a root; None if its requests are not signed, or the options have what signs them.

    Does not look for credentials yet.
    """
    find = finder_of(address, translation)
    return None if find is None else KeyRing(shown(address.root), find)


def finder_of(address: Address, translation: Translation) -> Find | None:
    """The function that looks for the credentials of a root once; None as in `ring_of`."""
    config = translation.config
    root = shown(address.root)
    kind = family(address.scheme)
    if config.get("skip_signature"):
        return None
    if kind == "s3" and boto_keys.of_options(config) is None:
        return partial(boto_keys.find, root, translation.profile)
    # The others are imported when they are needed: 2 ms of an engine's start (2026-11-24).
    if kind == "gs":
        from streamer.store.credentials import google_tokens

        return partial(google_tokens.find, root, config, user=translation.google_user)
    if kind == "az":
        from streamer.store.credentials import azure_tokens

        return None if azure_tokens.has_secret(config) else partial(azure_tokens.find, root, config)
    return None
