"""The configuration of a service from file, variables and options; unknown settings are errors."""

import json
from dataclasses import replace

import pytest

from streamer.config import (
    SERVICE_VARIABLES,
    CacheConfig,
    DatasetConfig,
    EngineConfig,
    Environment,
    check_variables,
)
from streamer.errors import ConfigError
from streamer.service import configuration
from streamer.service.configuration import DEFAULT_HTTP, read_service_config, read_trainer_config

FILE = """
[cache]
directory = "/nvme/streamer"
limit_bytes = "200GB"
group = "2000"
layers = ["/ro/a", "/ro/b"]
[fetch]
window_max = 32
hedge = false
[engine]
socket_path = "/run/streamer/engine.sock"
[service]
http = "0.0.0.0:9000"
allow_uids = [1000, 1001]
drain_seconds = 5
[[datasets]]
url = "s3://bucket/train/"
storage_options = { anon = true }
[[datasets]]
url = "gs://other/"
"""


def environment(**variables: str) -> Environment:
    """Reads an environment with these variables."""
    return Environment.read({"HOME": "/home/u", "STREAMER_RUNTIME_DIR": "/run/u", **variables})


def written(tmp_path, text):
    """Writes a settings file and returns its path."""
    path = tmp_path / "streamer.toml"
    path.write_text(text)
    return path


def test_a_file_says_everything(tmp_path):
    """The settings file gives sizes, paths, lists, numbers and datasets in the types of their fields."""
    config = read_service_config(written(tmp_path, FILE), environment(), {})
    assert (str(config.cache.directory), config.cache.limit_bytes, config.cache.group) == (
        "/nvme/streamer",
        200 * 10**9,
        "2000",
    )
    assert [str(layer) for layer in config.cache.layers] == ["/ro/a", "/ro/b"]
    assert (config.fetch.window_max, config.fetch.hedge) == (32, False)
    assert (str(config.socket_path), config.grace_seconds) == ("/run/streamer/engine.sock", None)
    assert config.service.allow_uids == (1000, 1001)
    assert (config.service.http, config.service.drain_seconds) == ("0.0.0.0:9000", 5.0)
    assert config.datasets == (
        DatasetConfig(url="s3://bucket/train/", storage_options={"anon": True}),
        DatasetConfig(url="gs://other/"),
    )


def test_an_engine_of_a_trainer_reads_the_same_file(tmp_path):
    """The engine of a trainer reads [cache], [fetch] and [engine] of the file; folder and limit are the trainer's."""
    own = EngineConfig(
        cache=CacheConfig(directory=tmp_path, limit_bytes=7), socket_path=tmp_path / "s", grace_seconds=2
    )
    file = written(tmp_path, FILE + "[peers]\nmembers = 'a:1'\n")
    config = read_trainer_config(file, {}, own)
    assert (config.cache.directory, config.cache.limit_bytes, config.cache.group) == (tmp_path, 7, "2000")
    assert (config.fetch.window_max, config.fetch.hedge) == (32, False)
    assert (config.socket_path, config.grace_seconds) == (tmp_path / "s", 2)
    assert (config.service, config.peers, config.datasets, config.refuse_local) == (own.service, own.peers, (), False)
    unlimited = replace(own, cache=CacheConfig(directory=tmp_path))
    assert read_trainer_config(file, {}, unlimited).cache.limit_bytes == 200 * 10**9


@pytest.mark.parametrize("has_file", [False, True], ids=["no file", "file"])
def test_variables_count_for_the_engine_of_a_trainer(tmp_path, has_file):
    """For the engine of a trainer variables go before the settings file, and arguments of the dataset before both."""
    own = EngineConfig(cache=CacheConfig(directory=tmp_path), socket_path=tmp_path / "s")
    variables = environment(
        STREAMER_CACHE_BYTES="1GB", STREAMER_MEMORY_BYTES="64MiB", STREAMER_FETCH_PROCESSES="3", STREAMER_GROUP="7"
    ).engine_settings()
    config = read_trainer_config(written(tmp_path, FILE) if has_file else None, variables, own)
    assert (config.cache.limit_bytes, config.cache.group) == (10**9, "7")
    assert (config.fetch.memory_bytes, config.fetch_processes) == (64 << 20, 3)
    limited = replace(own, cache=CacheConfig(directory=tmp_path, limit_bytes=7))
    assert read_trainer_config(None, variables, limited).cache.limit_bytes == 7


@pytest.mark.parametrize("name", SERVICE_VARIABLES)
def test_a_variable_of_a_service_is_refused_by_a_trainer(name):
    """A variable that only a service uses is refused by the engine of a trainer, where it would have no effect."""
    with pytest.raises(ConfigError, match=f"STREAMER_{name} is a setting of `streamer serve`"):
        environment(**{f"STREAMER_{name}": "x"}).engine_settings()


def test_nothing_said_is_a_service_on_loopback():
    """Without settings a service has the user's cache, a socket in the runtime folder, and HTTP on loopback."""
    config = read_service_config(None, environment(), {})
    assert str(config.cache.directory) == "/home/u/.cache/streamer"
    assert (str(config.socket_path), config.service.http) == ("/run/u/engine.sock", DEFAULT_HTTP)
    assert DEFAULT_HTTP.startswith("127.0.0.1:")


def test_options_count_more_than_variables_and_these_more_than_the_file(tmp_path):
    """Options go before variables and these before the settings file; an option that is None does not count."""
    path = written(tmp_path, FILE)
    variables = environment(STREAMER_CACHE_BYTES="1GB", STREAMER_GROUP="7", STREAMER_ALLOW_UIDS="5,6")
    config = read_service_config(path, variables, {"cache_bytes": 3, "group": None})
    assert (config.cache.limit_bytes, config.cache.group, config.service.allow_uids) == (3, "7", (5, 6))
    assert read_service_config(path, variables, {"cache_bytes": "auto"}).cache.limit_bytes is None


def test_a_variable_of_the_cache_folder_counts_more_than_the_file(tmp_path, caplog):
    """STREAMER_CACHE_DIR goes before the file, where a line says so if that names another, and after the option."""
    path = written(tmp_path, FILE)
    named = environment(STREAMER_CACHE_DIR="/cache")
    assert str(read_service_config(path, named, {}).cache.directory) == "/cache"
    assert "/cache, as STREAMER_CACHE_DIR says, and not /nvme/streamer" in caplog.text
    caplog.clear()
    assert str(read_service_config(path, named, {"cache_dir": "/option"}).cache.directory) == "/option"
    same = environment(STREAMER_CACHE_DIR="/nvme/./streamer")
    assert str(read_service_config(path, same, {}).cache.directory) == "/nvme/streamer"
    assert str(read_service_config(path, environment(), {}).cache.directory) == "/nvme/streamer"
    assert caplog.text == ""


SAID = {
    "cache_dir": ("/a", "/b"),
    "cache_bytes": ("1GB", "2GB"),
    "memory_bytes": ("1GB", "2GB"),
    "fetch_processes": ("1", "2"),
    "allow_uids": ("1", "2,3"),
    "drain_seconds": ("1", "2"),
    "max_connections": ("20", "30"),
    "peers": ("dns:a:1", "dns:b:2"),
}


@pytest.mark.parametrize("name", sorted(configuration._PLACES))
def test_each_variable_counts_more_than_its_key_of_the_file(tmp_path, name):
    """Each setting that has a variable takes its value, whatever the file says."""
    section, key = configuration._PLACES[name]
    file, variable = SAID.get(name, ("/a:1", "/b:2"))
    path = written(tmp_path, f"[{section}]\n{key} = {file!r}\n")

    def find(variables: dict[str, str]) -> object:
        config = read_service_config(path, environment(**variables), {})
        return getattr(config if section == "engine" else getattr(config, section), key)

    with_variable = find({f"STREAMER_{name.upper()}": variable})
    assert with_variable != find({})
    path.write_text("")
    assert with_variable == find({f"STREAMER_{name.upper()}": variable})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[cache]\ndirektory = '/a'", "direktory"),
        ("[cash]\n", "cash"),
        ("[engine]\ngrace_seconds = 3", "grace_seconds"),
        ("[engine]\ncache = 3", "cache"),
        ("[service]\ndrain_seconds = 'long'", "drain_seconds"),
        ("[service]\ndrain_seconds = -1", "drain_seconds"),
        ("[fetch]\nhedge = 'no'", "hedge"),
        ("[fetch]\nattempts = 2", r"attempts is fixed at 8 now; remove it; it has client, range_bytes, "),
        ("[fetch]\nwindow = 2", "has no setting 'window'; it has client, "),
        ("[fetch]\nwindow_max = 2.5", "window_max"),
        ("[cache]\nfree_floor_share = 20", "free_floor_share=20 is not a share between 0 and 1"),
        ("[cache]\neviction = 'lru'", "eviction"),
        ("[fetch]\nclient = 'wget'", "client='wget' is not one of auto, curl, obstore"),
        ("[cache]\nlayers = 3", "layers"),
        ("[engine]\nlookahead_chunks = 64", "lookahead_chunks"),
        ("[engine]\nindex_limit_seconds = 60", "index_limit_seconds"),
        ("[[datasets]]\nurl = 's3://b/'\nsecret = 'x'", "secret"),
        ("[[datasets]]\nstorage_options = {}", "url"),
        ("[[datasets]]\nurl = 's3://b/'\nstorage_options = 3", "storage_options"),
        ("[[datasets]]\nurl = 's3://b/'\nstorage_options = 3\nstorage_options_file = 'keys.json'", "storage_options"),
        ("datasets = 3", "datasets"),
        ("cache = 3", "cache"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path, text, named):
    """A misspelt or impossible setting is an error that names it."""
    with pytest.raises(ConfigError, match=named):
        read_service_config(written(tmp_path, text), environment(), {})


def test_options_may_lie_in_a_file_of_their_own(tmp_path):
    """Storage options may be in a file of their own, as a mounted Secret, and go before the configuration's."""
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"key": "k", "secret": "s"}))
    text = f"[[datasets]]\nurl = 's3://b/'\nstorage_options = {{ anon = false }}\nstorage_options_file = '{secret}'"
    (dataset,) = read_service_config(written(tmp_path, text), environment(), {}).datasets
    assert dataset.storage_options == {"anon": False, "key": "k", "secret": "s"}
    assert "'s'" not in repr(dataset)


@pytest.mark.parametrize("content", ["{'key': 'hunter2'}", '["hunter2"]'])
def test_a_broken_secret_is_not_quoted(tmp_path, content):
    """A file of storage options that cannot be read is an error with the file's name and none of its content."""
    (tmp_path / "secret.json").write_text(content)
    text = f"[[datasets]]\nurl = 's3://b/'\nstorage_options_file = '{tmp_path}/secret.json'"
    with pytest.raises(ConfigError) as refused:
        read_service_config(written(tmp_path, text), environment(), {})
    assert "secret.json" in str(refused.value)
    assert "hunter2" not in f"{refused.value!r} {refused.value.__cause__!r}"


def test_a_misspelt_variable_is_refused_and_kubernetes_are_not():
    """A misspelt variable of streamer is refused; those that Kubernetes makes for a Service "streamer" are not."""
    check_variables({"STREAMER_CACHE_DIR": "/c", "STREAMER_SERVICE_HOST": "10.0.0.1", "STREAMER_PORT_80_TCP_ADDR": "x"})
    with pytest.raises(ConfigError, match="STREAMER_CACHE_BYTE "):
        check_variables({"STREAMER_CACHE_BYTE": "1GB"})
