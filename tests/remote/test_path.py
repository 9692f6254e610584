"""A place in an object store is used as a path on disk is, and its errors are one line."""

import errno
from pathlib import Path, PurePosixPath

import pytest

from probekit.errors import StorageError, UsageError
from probekit.files.durable import write_as, write_named
from probekit.files.remote import attempts
from probekit.files.remote.attempts import attempt
from probekit.files.remote.path import RemotePath, as_path
from probekit.options.check import check_any_path, check_path


@pytest.mark.parametrize("address", ["s3://b/x/y.json", "gs://b/x/y.json", "hf://datasets/o/n/y.json", "memory://b/x"])
def test_an_address_is_taken_apart_as_pathlib_does(address):
    place, pure = as_path(address), PurePosixPath(address.split("://")[1])
    assert isinstance(place, RemotePath)
    assert str(place) == address
    assert (place.name, place.stem, place.suffix) == (pure.name, pure.stem, pure.suffix)
    assert place.parent.key == str(pure.parent)
    assert [one.key for one in place.parents] == [str(one) for one in pure.parents][:-1]
    assert (place / "a" / "b.c").key == str(pure / "a" / "b.c")
    assert (place / "a" / "b").relative_to(place) == Path("a/b")
    assert as_path(Path(address)) == place


def test_all_else_is_on_disk():
    for given in ("runs/a", "/tmp/s3", "s3", "C:/x", "s3:x", Path("runs")):
        assert as_path(given) == Path(given)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("abfs://x/y", "'abfs://'"),
        (Path("abfs://x/y"), "'abfs://'"),
        ("s3://", "no bucket"),
        ("s3:", "no bucket"),  # what pathlib makes of it
        ("s3://key:hidden@b/x", "no credentials"),
        ("gs://b/../other", "no meaning"),
        ("s3://b/x?versionId=3/plan.json", "no versionId"),
    ],
)
def test_an_address_that_cannot_be_is_refused(address, message):
    with pytest.raises(UsageError, match=message) as error:
        as_path(address)
    assert "hidden" not in str(error.value)


def test_a_folder_that_is_there_may_have_the_name_of_a_scheme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("abfs:").mkdir()
    assert as_path(Path("abfs://x/y")) == Path("abfs:/x/y")


def test_only_stores_are_elsewhere():
    assert check_any_path("the store", "s3://b/x") == RemotePath("s3", "b/x")
    with pytest.raises(UsageError, match="on this machine"):
        check_path("out", "s3://b/x")


def test_the_verbs_agree_with_those_of_a_disk(place, tmp_path):
    names = ["a.json", "b.txt", "sub/c.json", "sub/deep/d.json", "other/c.json"]
    for root in (place, tmp_path):
        for name in names:
            if isinstance(root, Path):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(name.encode())
    for pattern in ("*", "*.json", "s*/*.json", "[ab].*", "none*"):
        found = [{str(one.relative_to(root)) for one in root.glob(pattern)} for root in (place, tmp_path)]
        assert found[0] == found[1]
    assert {str(one.relative_to(place)) for one in place.rglob("c.json")} == {"sub/c.json", "other/c.json"}
    for name in (*names, "sub", "none", "sub/none"):
        one, other = place / name, tmp_path / name
        assert (one.exists(), one.is_dir(), one.is_file()) == (other.exists(), other.is_dir(), other.is_file())
        assert one.is_object() == other.is_file()
    assert (place / "b.txt").read_bytes() == b"b.txt"
    assert (place / "b.txt").read_bytes(1, 3) == b".t"
    assert (place / "b.txt").read_bytes(3, 100) == b"xt"
    assert (place / "b.txt").stat().st_size == 5
    assert list((place / "none").iterdir()) == []
    (place / "b.txt").unlink()
    (place / "b.txt").unlink(missing_ok=True)
    for verb in (place / "b.txt").unlink, (place / "b.txt").read_bytes, (place / "b.txt").stat:
        with pytest.raises(FileNotFoundError):
            verb()


def test_the_first_writer_wins(place):
    assert place.create(b"one")
    assert not place.create(b"two")
    assert place.read_bytes() == b"one"
    place.write_bytes(b"three")
    assert place.read_bytes() == b"three"


@pytest.fixture
def asked(monkeypatch):
    """Ask for something that fails with these errors and then succeeds; the number of requests."""
    monkeypatch.setattr(attempts, "_reached", set())

    def ask(*errors, scheme="s3"):
        left, sent = list(errors), []

        def request():
            sent.append(1)
            if left:
                raise left.pop(0)
            return "answer"

        try:
            return attempt(scheme, "s3://b/x", request), len(sent)
        except (StorageError, OSError) as error:
            return error, len(sent)

    return ask


@pytest.mark.parametrize(
    "error", [ConnectionResetError("reset"), TimeoutError(), EOFError(), OSError(errno.EBUSY, "slow down")]
)
def test_what_may_pass_is_repeated(asked, error):
    assert asked(error, error) == ("answer", 3)


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "SlowDown", "ServiceUnavailable", "InternalError"])
def test_what_amazon_calls_passing_is_repeated(asked, code):
    """A conflict (409) is what one of two writers gets while the other's object is on its way."""
    from botocore.exceptions import ClientError
    from s3fs.errors import translate_boto_error

    error = translate_boto_error(ClientError({"Error": {"Code": code, "Message": "later"}}, "PutObject"))
    assert asked(error) == ("answer", 2)


def test_a_store_that_never_answers_is_told_soon_and_one_that_did_is_waited_for(asked, monkeypatch):
    monkeypatch.setattr(attempts, "LONGEST_WAIT", 0.001)
    errors = [ConnectionResetError("reset")] * 50
    error, sent = asked(*errors)
    assert isinstance(error, StorageError)
    assert sent == attempts.ATTEMPTS_UNREACHED
    asked()
    error, sent = asked(*errors)
    assert sent == attempts.ATTEMPTS_REACHED
    assert "no answer after 9 attempts" in str(error)
    error, _ = asked(*[_with_status(503)] * 50)
    assert "refused 9 times" in str(error)


def _with_status(status):
    error = OSError("slow down")
    error.code = status  # pyright: ignore[reportAttributeAccessIssue]
    return error


def test_a_refusal_is_told_at_once_with_what_to_do(asked):
    error, sent = asked(PermissionError("Access Denied to http://me:hidden@host"))
    assert isinstance(error, StorageError)
    assert isinstance(error.__cause__, OSError)
    assert sent == 1
    assert "AWS_PROFILE" in str(error)
    assert "hidden" not in str(error)
    error, sent = asked(ValueError("bad key"), scheme="gs")
    assert sent == 1
    assert "gcloud" in str(error)


def test_a_lost_answer_does_not_turn_a_writer_into_a_loser(place, monkeypatch):
    """The object was put, the connection broke, and the second request finds the object of the first."""
    from probekit.files.remote.filesystems import filesystem

    files = filesystem("memory")
    put, sent = files.pipe_file, []

    def pipe_file(path, data, **how):
        put(path, data, **how)
        sent.append(path)
        if len(sent) == 1:
            raise ConnectionResetError("reset")

    monkeypatch.setattr(files, "pipe_file", pipe_file)
    assert (place / "a").create(b"mine")
    assert len(sent) == 1
    assert not (place / "a").create(b"mine")
    assert not (place / "a").create(b"other")


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    import fsspec

    from probekit.files.remote import filesystems

    def missing(*_, **__):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    monkeypatch.setattr(filesystems, "_made", {})
    with pytest.raises(StorageError, match=r"pip install '\.\[s3\]'"):
        as_path("s3://b/x").exists()


def test_a_file_of_no_bytes_and_one_of_many_parts_are_put_as_they_are(place, monkeypatch):
    assert write_named(place, [], lambda: "empty").read_bytes() == b""
    monkeypatch.setattr("probekit.files.durable.ONE_REQUEST", 5)  # beyond it the parts are in a temporary file
    parts = [b"abc", bytearray(b"de"), memoryview(b"fgh")]
    assert [write_named(place, parts[:n], lambda: "some").read_bytes() for n in (1, 2, 3)] == [
        b"abc",
        b"abcde",
        b"abcdefgh",
    ]


def test_a_small_object_needs_no_temporary_file(place, monkeypatch):
    monkeypatch.setattr("probekit.files.scratch.tempfile.TemporaryFile", None)
    write_as(place / "x.json", b"{}")
    assert (place / "x.json").read_bytes() == b"{}"
