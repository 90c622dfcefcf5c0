"""The allowlist of urls of a service: which urls are served, and with which storage options."""

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.config import DatasetConfig
from streamer.engine.url_allowlist import UrlAllowlist
from streamer.errors import AccessDeniedError, ConfigError
from streamer.store.addresses.patterns import expand
from streamer.wire.messages import GetManifest, OpenSession
from streamer.wire.store_options import StoreOptions

ONE, TWO = {"key": "one"}, {"key": "two"}


DATASETS = [
    DatasetConfig(url="s3://bucket/train/", storage_options=ONE),
    DatasetConfig(url="s3://bucket/train/extra/", storage_options=TWO),
    DatasetConfig(url="gs://other", storage_options=TWO),
    DatasetConfig(url="https://host/data", storage_options=TWO),
]


@pytest.fixture
def allowlist():
    """Makes the allowlist of a service with four datasets and two sets of options."""
    return UrlAllowlist(DATASETS)


@pytest.mark.parametrize(
    "holder",
    [
        vars(UrlAllowlist([DatasetConfig(url="s3://bucket/", storage_options={"secret": "hunter2"})])),
        GetManifest(0, ["s3://bucket/"], "auto", StoreOptions.make({"secret": "hunter2"})),
        OpenSession(
            0, job="job", dataset="digest", consumer="rank 0", options=StoreOptions.make({"secret": "hunter2"})
        ),
    ],
    ids=["allowlist", "manifest", "session"],
)
def test_secrets_are_not_in_the_repr(holder):
    """Objects that hold storage options show no secret in their repr, which logs and tracebacks print."""
    assert "hunter2" not in repr(holder)


def test_without_datasets_the_client_says_how():
    """Without datasets any url is allowed, with the client's own options."""
    allowlist = UrlAllowlist()
    assert not allowlist.restricted
    assert allowlist.options(["s3://anything/"], ONE) == ONE
    allowlist.check_objects(["file:///etc/passwd"], {})


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket/train/", ONE),
        ("s3://bucket/train", ONE),
        ("s3://bucket/train/0001.tar", ONE),
        ("s3://bucket/train/{00..10}.tar", ONE),
        ("s3://bucket/train/extra/a", TWO),
        ("gs://other/any/thing", TWO),
    ],
)
def test_the_longest_configured_url_above_decides(allowlist, url, options):
    """The longest configured url above a requested one decides its options, whatever the client offers."""
    assert allowlist.options([url], {"key": "the client's"}) == options


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/",
        "s3://bucket/training/",
        "s3://bucket/train/../secret/",
        "s3://bucket/train/./a",
        "s3://bucket2/train/",
        "gs://otherwise/",
        "file:///etc/passwd",
        "/etc/passwd",
        "s3://bucket/train/\0",
        "http://169.254.169.254/latest/meta-data/",
        "https://bucket/train/%2e%2e/a",
    ],
)
def test_everything_else_is_denied(allowlist, url):
    """Neighbours and parents of configured urls, other buckets, local files and the metadata service are denied."""
    with pytest.raises(AccessDeniedError, match="datasets"):
        allowlist.options([url], ONE)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/{train,private}/a",
        "s3://bucket/train/{a,..}/private",
        "https://{bucket,169.254.169.254}/a",
        "{s3://bucket/train,/etc}/passwd",
    ],
)
def test_braces_are_what_they_stand_for(allowlist, url):
    """A url with braces is denied when one of its choices is not served."""
    with pytest.raises(AccessDeniedError, match="datasets"):
        allowlist.options([url], ONE)


def test_braces_over_served_urls_are_served(allowlist):
    """A url with braces is served if all its choices are, with the same options; different ones are a ConfigError."""
    assert allowlist.options(["{s3://bucket/train/extra,gs://other}/a"], ONE) == TWO
    with pytest.raises(ConfigError, match="different storage options"):
        allowlist.options(["s3://bucket/train/{a,extra/b}"], ONE)


def test_a_denied_url_is_shown_without_its_secrets(allowlist):
    """The error of a denied url shows neither its password nor its signature."""
    with pytest.raises(AccessDeniedError) as denied:
        allowlist.options(["https://user:hunter2@host/a?sig=hunter2"], {})
    assert "hunter2" not in f"{denied.value} {denied.value.details}"


def test_urls_of_one_dataset_must_have_one_set_of_options(allowlist):
    """Urls of one dataset with different options are a ConfigError, since they would need two clients."""
    with pytest.raises(ConfigError, match="different storage options"):
        allowlist.options(["s3://bucket/train/a", "gs://other/b"], {})


@pytest.mark.parametrize("url", ["s3://bucket/train/extra/a", "s3://private/a", "/etc/shadow"])
def test_objects_of_a_manifest_are_checked(allowlist, url):
    """Objects that a manifest names are denied unless they have the same options as the dataset."""
    allowlist.check_objects(["s3://bucket/train/a", "s3://bucket/train/b"], ONE)
    with pytest.raises(AccessDeniedError):
        allowlist.check_objects(["s3://bucket/train/a", url], ONE)


def test_a_link_does_not_lead_out_of_a_local_dataset(tmp_path):
    """A link or .. out of a local dataset is denied, since the service may read what the trainer may not."""
    (tmp_path / "data").mkdir()
    (tmp_path / "private").write_text("x")
    os.symlink(tmp_path / "private", tmp_path / "data" / "link")
    allowlist = UrlAllowlist([DatasetConfig(url=str(tmp_path / "data"))])
    assert allowlist.options([f"{tmp_path}/data/a", f"file://{tmp_path}/data/"], {}) == {}
    for url in (f"{tmp_path}/data/link", f"{tmp_path}/data/../private"):
        with pytest.raises(AccessDeniedError):
            allowlist.options([url], {})


@pytest.mark.parametrize(
    "key",
    [
        *("%2e%2e/secret/a?", "%2e%2e/secret/a?x=1", "a?/../../secret", "a?x=1", "x?", "%252e%252e/secret/a"),
        *(
            "..\\secret/a",
            "%2e%2e\\a",
            "..;/secret/a",
            "..%3b/secret/a",
            ".%2e/a",
            "a#/../b",
            "%2e./a#",
            "a\tb",
            "..\n/a",
        ),
        "%2e%2e%2fsecret/a",
        # Encoded three and four times, too many bytes of UTF-8, Microsoft's %u, other letters that are made dots.
        *("%25252e%25252e/secret/a", "%2525252e%2525252e/a", "%c0%ae%c0%ae/secret/a", "%E0%80%AE%e0%80%ae/a"),
        *("%u002e%u002e/secret", "%uff0e%uff0e/a", "\uff0e\uff0e/secret/a", "%ef%bc%8e%ef%bc%8e/a", "\u2025/a"),
        *("..%c0%afsecret", "..\uff0fsecret", "..%u2215a", "..%u005ca"),
        # What C, Windows and shells drop at the end of a name.
        *("..%00/secret/a", "..%00x", "x/..%2500/a", "..%20/secret/a", ".. /a", "..%09/a", ".../a", "..../a"),
        *("a%0ab", "a%7f", "a%c2%9bm"),
    ],
)
def test_what_a_server_may_read_in_another_way_is_not_served(key):
    """Keys that some server may read in another way, with a query, encoded dots or ends of a segment, are denied."""
    allowlist = UrlAllowlist([DatasetConfig(url="http://host/data/", storage_options={})])
    with pytest.raises(AccessDeniedError):
        allowlist.check_objects([f"http://host/data/{key}"], {})


def test_a_query_that_the_operator_has_written_is_served():
    """A signed url in the configuration is served exactly as written, and with nothing added."""
    signed = "https://host/data/a.tar?X-Amz-Signature=1"
    allowlist = UrlAllowlist([DatasetConfig(url=signed, storage_options={})])
    allowlist.check_objects([signed], {})
    with pytest.raises(AccessDeniedError):
        allowlist.check_objects([f"{signed}&x=1"], {})


def test_keys_of_buckets_may_have_these_signs():
    """Keys of buckets may have question marks, hashes and dots, and urls of web servers harmless escapes."""
    allowlist = UrlAllowlist([DatasetConfig(url="s3://b/data/", storage_options={})])
    allowlist.check_objects(["s3://b/data/a?b.tar", "s3://b/data/a#b", "s3://b/data/a..b/..c"], {})
    allowlist.check_objects(["s3://b/data/100%25 a.tar", "s3://b/data/\u732b.tar", "s3://b/data/.hidden"], {})
    web = UrlAllowlist([DatasetConfig(url="http://host/data/", storage_options={})])
    names = ("a%20b", "%e7%8c%ab.tar", "a%2fb", "caf%e9", "a;v=1")
    web.check_objects([f"http://host/data/{name}" for name in names], {})
    for name in names:
        with pytest.raises(AccessDeniedError, match="datasets"):
            web.check_objects([f"http://host/other/{name}"], {})


@given(
    st.sampled_from(["s3://bucket/", "s3://bucket/train/", "s3://bucket/train/ex", "https://host/data/", "s3://"]),
    st.lists(
        st.sampled_from(
            [
                "{0..2}",
                "{a,..}",
                "{.,x}",
                "{..,.}",
                "{,a}",
                "{a,b/c}",
                "{2,3}e",
                "{a,..;x}",
                "{a, }",
                "..;",
                "%",
                "%2e",
                ".",
                "..",
                "/",
                "x",
                "tra",
                "?",
            ]
        ),
        max_size=6,
    ).map("".join),
)
def test_braces_are_judged_as_all_that_they_stand_for(stem, rest):
    """The answer for a url with braces is that for all urls it stands for, though most are not expanded for it."""
    allowlist = UrlAllowlist(DATASETS)

    def answer(urls):
        try:
            return allowlist.options(urls, {})
        except (AccessDeniedError, ConfigError) as error:
            return type(error)

    assert answer([stem + rest]) == answer(expand(stem + rest))


def test_many_urls_are_judged_by_one():
    """A million urls in one pattern are judged in less than a second; those to be compared one by one are bounded."""
    allowlist = UrlAllowlist(DATASETS)
    begun = time.process_time()
    assert allowlist.options(["s3://bucket/train/x/{000000..999999}.tar"], {}) == ONE
    with pytest.raises(AccessDeniedError):
        allowlist.options(["s3://other/x/{000000..999999}.tar"], {})
    with pytest.raises(ConfigError, match="at most 10,000"):
        allowlist.options(["s3://bucket/{train,x}/{00000..99999}.tar"], {})
    assert time.process_time() - begun < 1.0


FOLDERS = [
    "s3://bucket",
    "s3://bucket/train",
    "s3://bucket/train/extra",
    "gs://other/x",
    "https://host/data",
    "/data/a",
]
NAMES = [
    "a",
    "b.tar",
    "..",
    ".",
    "...",
    "a?b",
    "a%2e",
    "%2e%2e",
    "extra",
    "x",
    "a#b",
    "\uff0e\uff0e",
    ".. ",
    "{a,b}",
    "",
]
PLACES = [
    *DATASETS,
    DatasetConfig(url="s3://bucket/train/one.tar", storage_options=TWO),
    DatasetConfig(url="/data/", storage_options=ONE),
    DatasetConfig(url="/data/a/x", storage_options=TWO),
]


@given(
    st.lists(st.sampled_from(PLACES), min_size=1),
    st.lists(st.tuples(st.sampled_from(FOLDERS), st.sampled_from(NAMES)), max_size=8),
    st.sampled_from([{}, ONE, TWO]),
)
def test_a_folder_is_judged_as_each_of_its_names(datasets, named, options):
    """Comparing folders once gives the same answer as comparing each of their objects."""
    allowlist = UrlAllowlist(datasets)
    urls = [f"{folder}/{name}" for folder, name in named]

    def answer(check):
        try:
            return check()
        except (AccessDeniedError, ConfigError) as error:
            return type(error), str(error)

    def each():
        for url in urls:
            allowlist.check_objects([url], options)

    assert answer(lambda: allowlist.check_objects(urls, options)) == answer(each)


def test_a_hundred_thousand_objects_take_no_time(tmp_path):
    """100,000 objects, or 20,000 local files with a check for links, are judged in less than a second.
    (One by one they took 1.1 s.)"""
    allowlist = UrlAllowlist([*DATASETS, DatasetConfig(url=str(tmp_path))])
    of_bucket = [f"s3://bucket/train/{number % 100:03}/{number:06}.tar" for number in range(100_000)]
    at_root = [f"gs://other/{number:06}.tar" for number in range(100_000)]
    of_files = [f"{tmp_path}/{number:06}.bin" for number in range(20_000)]
    for urls, options in ((of_bucket, ONE), (at_root, TWO), (of_files, {})):
        begun = time.process_time()
        assert allowlist.options(urls, {}) == options
        allowlist.check_objects(urls, options)
        assert time.process_time() - begun < 1.0
    (tmp_path / "019999.bin").symlink_to("/etc/passwd")
    with pytest.raises(AccessDeniedError, match="019999"):
        allowlist.options(of_files, {})
