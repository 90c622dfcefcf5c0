"""Tests of the options of a dataset, and of how they are told to the engine and its client."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamer.config import Environment
from streamer.errors import ConfigError
from streamer.loader.options.arguments import Order
from streamer.loader.options.dataset_options import DatasetOptions, absolute, list_urls


def environment(**variables: str) -> Environment:
    return Environment.read({"HOME": "/home/x", "XDG_RUNTIME_DIR": "", **variables})


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("s3://b/p/", "s3://b/p/"),
        ("file:///d/x", "file:///d/x"),
        ("/d/../e", "/e"),
        ("/d/", "/d/"),
        ("rel/x", "/here/rel/x"),
        ("~/d", "/home/x/d"),
    ],
)
def test_local_paths_become_absolute(monkeypatch, url, whole):
    """A local path becomes absolute, as the engine runs elsewhere.

    Other urls stay as they are, and so does the slash of a folder.
    """
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.setattr("os.getcwd", lambda: "/here")
    assert absolute(url) == whole


def test_a_scheme_may_be_written_in_capitals():
    """A scheme in capitals becomes lower case, as stores name their objects so, and labels by folder come out."""
    assert absolute("S3://Bucket/A") == "s3://Bucket/A"


@pytest.mark.parametrize("url", [Path("s3://bucket/x"), "gs:/bucket/x", "https:/h/x"])
def test_a_scheme_with_one_slash_is_no_local_path(url):
    """A url whose scheme has one slash, as pathlib leaves it, is refused with the url to write as text."""
    with pytest.raises(ConfigError, match=r"write (s3|gs|https)://(bucket|h)/x as text"):
        DatasetOptions(urls=list_urls(url))


def test_one_url_or_several():
    """A dataset takes one url or several, as texts or paths."""
    assert list_urls("s3://b") == ("s3://b",)
    assert list_urls(Path("/d")) == ("/d",)
    assert list_urls(["s3://b", Path("/d")]) == ("s3://b", "/d")


def test_the_environment_gives_what_the_user_does_not(tmp_path):
    """Cache folder, engine and job come from the environment where the dataset's own arguments do not say them."""
    env = environment(STREAMER_CACHE_DIR="/c", STREAMER_ENGINE="unix:/s", TORCHELASTIC_RUN_ID="run7")
    found = DatasetOptions(urls=("s3://b",)).client_settings(env, "pid-1")
    assert (found.cache_dir, found.engine, found.job, found.cache_bytes) == (Path("/c"), "unix:/s", "run7", None)
    given = DatasetOptions(urls=("s3://b",), cache_dir=str(tmp_path), engine="unix:/t", cache_bytes="1MiB")
    found = given.client_settings(environment(), "pid-1")
    assert (found.cache_dir, found.engine, found.job, found.cache_bytes) == (tmp_path, "unix:/t", "pid-1", 1 << 20)


@pytest.mark.parametrize(("run_id", "job"), [("none", "pid-1"), ("nonesuch-1", "nonesuch-1"), ("run-none", "run-none")])
def test_a_run_is_the_job_unless_torchrun_calls_it_none(run_id, job):
    """A run's id is the job, unless it is "none", which torchrun calls a run without a name.

    A name that only has the word in it is a name.
    """
    found = DatasetOptions(urls=("s3://b",)).client_settings(environment(TORCHELASTIC_RUN_ID=run_id), "pid-1")
    assert found.job == job


def test_secrets_are_not_shown():
    """The `repr` of dataset options leaves storage options out, and with it logs and tracebacks."""
    assert "hush" not in repr(DatasetOptions(urls=("s3://b",), storage_options={"secret": "hush"}))


def test_free_parts_are_those_that_nobody_fixed():
    """`free_parts` are the parts of an order that the user has not fixed and a resumed state may bring along."""
    assert DatasetOptions(urls=("a",)).order.free_parts == {"lanes", "window", "lanes_by"}
    assert Order(lanes=4, lanes_by="key").free_parts == {"window"}
