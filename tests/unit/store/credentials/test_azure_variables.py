"""Variables of the Azure CLI where the storage options say nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from streamer.errors import ConfigError
from streamer.store import open_store
from streamer.store.credentials.azure_tokens import add_variables, has_secret

KEY = {"AZURE_STORAGE_ACCOUNT": "mine", "AZURE_STORAGE_KEY": "a2V5"}


@pytest.mark.parametrize(
    ("options", "variables", "expected"),
    [
        ({}, KEY, {"account_name": "mine", "account_key": "a2V5"}),
        ({"account_name": "other"}, KEY, {"account_name": "other"}),
        ({"anon": True}, KEY, {"anon": True}),
        ({}, {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=a", **KEY}, {"connection_string": "AccountName=a"}),
        ({"sas_token": "s"}, {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=a"}, {"sas_token": "s"}),
        ({}, {}, {}),
    ],
)
def test_variables_of_the_command_line(
    options: Mapping[str, object], variables: Mapping[str, str], expected: Mapping[str, object]
) -> None:
    """Azure's variables fill options: a connection string before a key, and a key for its own account only."""
    assert add_variables(options, variables) == expected


@pytest.mark.parametrize("name", ["AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY"])
def test_a_secret_of_the_environment_needs_no_token(name: str) -> None:
    """A secret in Azure's variables or options is enough to sign, since obstore signs with it without a token."""
    assert has_secret({}, {name: "x"})
    assert has_secret({"sas_key": "x"}, {})
    assert not has_secret({"account_name": "mine"}, {"AZURE_STORAGE_ACCOUNT": "mine"})


def test_a_container_without_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container without a storage account is refused when the store connects, with the ways to name the account."""
    for variable in ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING"):
        monkeypatch.delenv(variable, raising=False)
    store = open_store("az://c", {"account_key": "a2V5"})
    with pytest.raises(ConfigError, match=r"no storage account is named: set account_name .*AZURE_STORAGE_ACCOUNT, or"):
        store._connect()  # type: ignore[attr-defined]
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "mine")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a2V5")
    store = open_store("az://c", {"anon": False})
    assert store._connect() is not None  # type: ignore[attr-defined]
