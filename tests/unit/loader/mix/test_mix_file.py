"""A mix from a TOML file."""

from __future__ import annotations

from contextlib import closing

import pytest

from streamer import Decode, Homogeneous, Index, Order, Skip, Weights
from streamer.errors import ConfigError
from streamer.formats import Folder
from streamer.loader.mixed_dataset import MixedDataset
from tests.unit.loader.mix.conftest import numbers, write

MIX = """
batch_size = 10
weights = {values = WEIGHTS, epoch_samples = 40}

[members.a]
url = "A"
seed = 5

[members.b]
url = "B"
"""


@pytest.fixture
def described(fake_engine, folders, tmp_path):
    """Writes a file and reads the mix in it."""
    made = []

    def described(text=MIX, weights="{a = 3, b = 1}", **options):
        file = tmp_path / "mix.toml"
        for word, value in (("WEIGHTS", weights), ('"A"', f'"{folders["a"]}"'), ('"B"', f'"{folders["b"]}"')):
            text = text.replace(word, value)
        file.write_text(text)
        made.append(MixedDataset.from_file(file, **options))
        return made[-1]

    yield described
    while made:
        made.pop().close()


def test_a_file_is_the_same_mix_as_its_arguments(described, make_mix):
    """Sample for sample; `transform` is given in Python."""
    same = numbers(
        make_mix("ab", {"a": {"seed": 5}}, weights=Weights({"a": 3, "b": 1}, epoch_samples=40), batch_size=10)
    )
    assert numbers(described()) == same
    doubled = described(transform=lambda sample: {"npy": 2 * sample["npy"]})
    assert numbers(doubled) == [2 * number for number in same]


@pytest.mark.parametrize(("change", "quotas"), [("", [0, 0, 20]), (", 'linear'", [0, 10, 20])])
def test_stages_are_lists(described, change, quotas):
    """[epoch, weights] or [epoch, weights, "linear"]."""
    data = described(weights=f"[[0, {{a = 1, b = 0}}], [2, {{a = 1, b = 1}}{change}]]")
    assert [data.quotas(epoch)["b"] for epoch in range(3)] == quotas


def test_the_file_is_before_what_is_said_for_all(described):
    """The seed of a is in the file, that of b is not."""
    data = described(seed=6)
    assert [member._opening.options.seed for member in data.members.values()] == [5, 6]


def test_what_is_an_object_in_python_is_a_table(described):
    """Of the mix and of its members; what is said for all stays where the table of a member says nothing else."""
    text = """
order = {lanes = 2, last_batch = "drop"}
batching = {group = 5}
on_error = {budget = 3}
weights = {temperature = 2, epoch_samples = 40}
batch_size = 10

[members.a]
url = "A"
manifest = {on_error = "skip"}
decode = {allow_pickle = true}
format = {name = "folder", extensions = ["npy"]}

[members.b]
url = "B"
manifest = "s3://b/m"
"""
    rule = {"npy": bytes}
    data = described(text, manifest=Index(limit_seconds=7), decode=rule)
    options = data._options
    assert (options.order, options.batching) == (Order(lanes=2, last_batch="drop"), Homogeneous(5))
    assert (options.on_error, options.shares.temperature, options.shares.epoch_samples) == (Skip(3), 2, 40)
    a, b = [member._opening.options for member in data.members.values()]
    assert (a.manifest, a.decode) == (Index(limit_seconds=7, on_error="skip"), Decode(rule, allow_pickle=True))
    assert a.format == Folder(extensions=["npy"])
    assert b.manifest == Index("s3://b/m", limit_seconds=7)


def test_a_member_may_have_the_name_of_an_option(fake_engine, folders, tmp_path):
    """Then its weight is meant."""
    file = tmp_path / "mix.toml"
    file.write_text(f'weights = {{values = 3}}\n[members.values]\nurl = "{folders["a"]}"')
    with closing(MixedDataset.from_file(file)) as data:
        assert data._options.shares.weights == ((0, {"values": 3}),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('lanes = 8\n[members.a]\nurl = "a/"', r"mix\.toml: lanes= .* order=Order\(.*a table, order = \{"),
        ('[members.a]\nurl = "a/"\non_change = 1', r"member a: on_change= of .* manifest = \{\.\.\.\}"),
        ('order = {lane = 8}\n[members.a]\nurl = "a/"', "order has no option 'lane'; it has cut, lanes"),
        ('weights = {temperature = 1, length = 8}\n[members.a]\nurl = "a/"', "weights has no option 'length'"),
        ("weights = {a = 1", r"mix\.toml is not TOML"),
        ("weights = {a = 1}", r"mix\.toml has no members: a table \[members\.NAME\]"),
        ("members = {a = 3}", r"mix\.toml: member a has no url"),
        ('shares = 1\n[members.a]\nurl = "a/"', r"mix\.toml has no option 'shares'; it has .*weights"),
        ('[members.a]\nurl = "a/"\ntransfrom = 1', r"member a has no option 'transfrom'; it has .*transform"),
        ('[members.a]\nurl = "a/"\nseed = -1', r"^member a: seed"),
        ('weights = {b = 1}\n[members.a]\nurl = "a/"', r"weights has values for \['b'\]"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_the_place(described, text, message):
    """File, member, key."""
    with pytest.raises(ConfigError, match=message):
        described(text)


def test_a_missing_file_is_named(tmp_path):
    """With the system's reason."""
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: No such file"):
        MixedDataset.from_file(tmp_path / "none.toml")


def test_weights_can_be_shares_of_the_bytes(make_mix, folders, tmp_path):
    """Samples of 4,128 and 800 bytes: of equal bytes 19.5 and 100.5; of a selection by size its own bytes count."""
    folders["a"], folders["b"] = write(tmp_path / "long", 60, 0, 1000), write(tmp_path / "short", 60, 1000, 168)
    equal = {"weights": Weights({"a": 1, "b": 1}, unit="bytes", epoch_samples=120), "batch_size": 12}
    data = make_mix("ab", **equal)
    assert data.quotas(0) == {"a": 20, "b": 100}
    assert "of the bytes" in data.explain(12)
    for number in range(0, 60, 2):
        (folders["a"] / f"{number:04}.npy").write_bytes((folders["b"] / "0000.npy").read_bytes())
    folders["a"] = folders["a"].rename(tmp_path / "both")
    of_both = make_mix("ab", **equal)
    assert of_both.quotas(0) == {"a": 30, "b": 90}
    long = MixedDataset({"a": of_both["a"].select(min_bytes=1000), "b": of_both["b"]}, **equal)
    assert long.quotas(0) == {"a": 19, "b": 101}
    long.close()
