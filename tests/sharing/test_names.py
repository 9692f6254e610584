"""Headers of cards and addresses of the Hub: what is written is what is read, whatever a name holds."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from probekit.errors import UsageError
from probekit.export.front_matter import front_matter, is_unedited, marked
from probekit.files.hub import HubAddress, address_text, parse_address


@given(st.text(), st.lists(st.text(), min_size=1), st.booleans())
def test_yaml_reads_each_text_as_it_is(text: str, texts: list[str], flag: bool):
    lines = front_matter({"license": text, "datasets": texts, "viewer": flag, "left_out": None, "empty": []})
    assert yaml.safe_load("\n".join(lines[1:-2])) == {"license": text, "datasets": texts, "viewer": flag}


@pytest.mark.parametrize(
    "word", ["no", "Yes", "null", "1.0", "2024-01-01", "~", "on", "mit", "apache-2.0", "cc-by-4.0"]
)
def test_words_of_yaml_stay_texts(word: str):
    assert yaml.safe_load(front_matter({"license": word})[1]) == {"license": word}


@given(st.text(), st.text(min_size=1))
def test_an_edited_card_is_noticed(text: str, more: str):
    card = marked(f"# A card\n{text}")
    assert is_unedited(card)
    assert not is_unedited(more + card)
    assert not is_unedited(text)


@given(
    st.from_regex(r"[A-Za-z0-9]{1,8}/[A-Za-z0-9][a-z_-]{0,8}", fullmatch=True),
    st.none() | st.from_regex(r"[A-Za-z0-9._/-]{1,12}", fullmatch=True),
    st.from_regex(r"([a-z0-9 :@é]{1,8}(/[a-z0-9]{1,8})?)?", fullmatch=True),
)
def test_an_address_is_read_as_it_was_written(repo: str, revision: str | None, folder: str):
    address = HubAddress(repo, revision, folder)
    if repo.split("/")[0] not in ("datasets", "models"):
        assert parse_address(address_text(address), "dataset") == address
        assert parse_address(address_text(address).replace("hf://", "hf://datasets/"), "dataset") == address


@pytest.mark.parametrize(
    "name", ["", "hf://", "name", "a/b/../c", "../b", "a/b//c", "a b/c", "/a/b", "a/b@", "hf://a/b@x@y"]
)
def test_other_names_are_refused(name: str):
    with pytest.raises(UsageError, match="does not name a repository"):
        parse_address(name, "model")
