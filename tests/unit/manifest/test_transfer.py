"""Manifests exported as files and installed elsewhere: verified, complete, and under no foreign names."""

from __future__ import annotations

import pytest

from streamer.errors import ManifestCorruptError, ManifestVersionError
from streamer.manifest.transfer import export_files, install_files


async def test_out_and_in_again(tar_manifest, file_manifest, tmp_path):
    """Exported files are installed under the same digest, byte for byte, in any order."""
    for manifest in (tar_manifest, file_manifest):
        files = list(export_files(manifest))
        assert files[-1][0] == "root.json"
        installed = install_files(reversed(files), tmp_path / "elsewhere")
        assert installed.path == tmp_path / "elsewhere" / manifest.digest
        assert {p.name: p.read_bytes() for p in installed.path.iterdir()} == dict(files)


@pytest.mark.parametrize("name", ["root.json", "samples-00000.arrows"])
def test_a_missing_file(tar_manifest, tmp_path, name):
    """A manifest with a missing file is not installed."""
    files = [item for item in export_files(tar_manifest) if item[0] != name]
    with pytest.raises(ManifestCorruptError, match=name.replace(".", r"\.")):
        install_files(files, tmp_path / "x", "s3://b/manifest")
    assert list((tmp_path / "x").iterdir()) == []


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "samples-00000.arrows/../x", "a.sh", "samples-1.arrows\n"])
def test_foreign_names(tar_manifest, tmp_path, name):
    """A file with a name that no manifest has is refused and never written."""
    with pytest.raises(ManifestCorruptError, match="is not a file of a manifest"):
        install_files([*export_files(tar_manifest), (name, b"x")], tmp_path / "x")
    assert list((tmp_path / "x").iterdir()) == []
    assert not (tmp_path / "evil").exists()


def test_every_file_is_verified(tar_manifest, tmp_path):
    """One wrong byte in any file stops the installation."""
    files = dict(export_files(tar_manifest))
    for victim, content in files.items():
        raw = bytearray(content)
        raw[len(raw) // 2] ^= 1
        with pytest.raises(ManifestCorruptError, match="has digest" if victim != "root.json" else "root.json"):
            install_files({**files, victim: bytes(raw)}.items(), tmp_path / "x")
    assert list((tmp_path / "x").iterdir()) == []


def test_another_version(tar_manifest, tmp_path):
    """A manifest of another version raises ManifestVersionError when it is installed."""
    files = dict(export_files(tar_manifest))
    files["root.json"] = files["root.json"].replace(b'"version": 1', b'"version": 7')
    with pytest.raises(ManifestVersionError, match="version 7"):
        install_files(files.items(), tmp_path / "x")
