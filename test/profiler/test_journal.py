"""What survives an interrupt, a torn file and other work under the same name."""

import json
from pathlib import Path

import pytest
from smartgen.profiler.errors import ProfilerError
from smartgen.profiler.journal import Journal

ONE, TWO = {"kl": [0.1, 1e-30]}, [1, None, "é"]
WORK = {"options": {"seed": 1, "fractions": [0.1, 0.2]}, "model": "tiny"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "deep" / "work.jsonl", WORK)
    assert not journal.resumed
    journal.put("one", ONE)
    journal.put("two", TWO)
    return tmp_path / "deep" / "work.jsonl"


def kept(path: Path, work: dict[str, object] = WORK) -> tuple[bool, dict[str, object]]:
    journal = Journal(path, work)
    return journal.resumed, {key: journal[key] for key in ("one", "two") if key in journal}


def test_finished_pieces_are_there_again(path: Path) -> None:
    assert kept(path) == (True, {"one": ONE, "two": TWO})
    assert kept(path) == (True, {"one": ONE, "two": TWO})


def test_nothing_is_a_value_too(tmp_path: Path) -> None:
    """A piece that came to nothing is finished all the same."""
    Journal(tmp_path / "work.jsonl", WORK).put("one", None)
    assert kept(tmp_path / "work.jsonl") == (True, {"one": None})


def test_values_are_as_a_later_run_sees_them(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "work.jsonl", WORK)
    journal.put("one", {"a": (1, 2)})
    assert journal["one"] == {"a": [1, 2]}
    assert "none" not in journal


def test_a_cut_anywhere_loses_the_last_lines_only(path: Path) -> None:
    whole = path.read_bytes()
    header, one, _ = (len(line) for line in whole.splitlines(keepends=True))
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        resumed, pieces = kept(path)
        assert resumed == (size >= header - 1)
        assert ("one" in pieces) == (size >= header + one - 1)
        assert ("two" in pieces) == (size >= len(whole) - 1)


def test_a_cut_line_is_replaced_not_continued(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])
    journal = Journal(path, WORK)
    assert "two" not in journal
    journal.put("two", "anew")
    assert kept(path) == (True, {"one": ONE, "two": "anew"})
    assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize(
    "other",
    [WORK | {"model": "other"}, {"model": "tiny"}, WORK | {"options": {"seed": 2}}],
)
def test_other_work_starts_anew(path: Path, other: dict[str, object]) -> None:
    assert kept(path, other) == (False, {})
    assert kept(path) == (False, {})  # and has replaced the old


@pytest.mark.parametrize("content", [b"", b"\n", b"[]\n", b"12\n", b"\x89PNG\r\n\xff\xfe", b"{}"])
def test_a_file_of_something_else_starts_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "work.jsonl"
    path.write_bytes(content)
    assert kept(path) == (False, {})


def test_finished_work_is_removed(path: Path) -> None:
    journal = Journal(path, WORK)
    journal.remove()
    assert not path.exists()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ProfilerError, match=r"file/work\.jsonl cannot be written"):
        Journal(tmp_path / "file" / "work.jsonl", WORK)
