"""An engine that does not see what a notebook has set since."""

from __future__ import annotations

from streamer.client.store_variables import explained, meet
from streamer.errors import AccessDeniedError, ManifestError

REFUSED = AccessDeniedError("s3://b/: refused", url="s3://b/", status=403)


def test_an_error_of_a_store_names_the_variables_that_have_changed() -> None:
    """Set, changed or removed since this process met its engine; their values are not shown."""
    meet(-1, {"AWS_PROFILE": "old", "AWS_REGION": "x", "HOME": "/a"})
    meet(-1, {"AWS_PROFILE": "later, and too late"})
    error = explained(REFUSED, -1, {"AWS_PROFILE": "new", "AWS_ACCESS_KEY_ID": "hush", "HOME": "/b"})
    assert isinstance(error, AccessDeniedError)
    assert str(error).startswith("s3://b/: refused; AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_REGION changed in this process")
    assert "hush" not in str(error)
    assert error.details["status"] == 403


def test_other_errors_stay_as_they_are() -> None:
    """Nothing has changed; no store was asked; an engine that this process has not met."""
    meet(-2, {"AWS_PROFILE": "old"})
    assert explained(REFUSED, -2, {"AWS_PROFILE": "old", "HOME": "/"}) is REFUSED
    assert explained(REFUSED, -3, {"AWS_PROFILE": "new"}) is REFUSED
    other = ManifestError("no objects")
    assert explained(other, -2, {}) is other
