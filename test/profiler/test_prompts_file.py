"""Prompts from a file, and the sentence that each kind of broken file gets."""

import json
from pathlib import Path

import pytest
from smartgen.profiler.errors import ProfilerError
from smartgen.profiler.prompts import Prompt, PromptsFileError, read_prompts
from transformers import PreTrainedTokenizerFast


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_every_form_of_prompt(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    path = written(
        tmp_path / "prompts.jsonl",
        {"prompt": "Once upon a time"},
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
            ]
        },
        {"kind": "code", "name": "mine", "prompt": "def f(", "answer": "x"},
    )
    raw, chat, named = read_prompts(path, tokenizer)
    assert (raw.name, raw.kind, raw.answer) == ("prompts.jsonl:1", "file", None)
    assert tokenizer.decode(raw.tokens) == "Once upon a time"
    assert tokenizer.decode(chat.tokens) == "<system>Be brief.<end><user>Hi<end><assistant>"
    assert named == Prompt(name="mine", kind="code", tokens=named.tokens, answer="x")


def test_empty_lines_are_passed_over_and_lines_still_counted(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'\xef\xbb\xbf\r\n{"prompt": "a"}\r\n\n  \n{"prompt": "b"}')
    assert [p.name for p in read_prompts(path, tokenizer)] == ["prompts.jsonl:2", "prompts.jsonl:5"]


def test_line_separators_within_a_text_end_no_line(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    path = tmp_path / "prompts.jsonl"
    text = "one\u2028two\u2029three\u0085four"
    path.write_text(json.dumps({"prompt": text}, ensure_ascii=False), encoding="utf-8")
    (prompt,) = read_prompts(path, tokenizer)
    assert tokenizer.decode(prompt.tokens) == text


GOOD = '{"prompt": "fine"}'


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{prompt: 1}", "not JSON .*; one object per line is expected"),
        ('{"prompt": "cut of', "not JSON .*; one object per line is expected"),
        ("[" * 100_000, "not JSON .*; one object per line is expected"),
        ('{"prompt": ' + "1" * 5_000 + "}", "not JSON .*; one object per line is expected"),
        ('{"prompt": "half \\ud800"}', "not JSON .*; one object per line is expected"),
        ('["prompt"]', "a JSON object is expected, got list"),
        ('"prompt"', "a JSON object is expected, got str"),
        ("null", "a JSON object is expected, got NoneType"),
        ('{"prompt": "a", "anwser": "b"}', "unknown field 'anwser'; known are answer, kind"),
        ("{}", "give either prompt or messages"),
        ('{"kind": "code"}', "give either prompt or messages"),
        ('{"prompt": "a", "messages": []}', "give either prompt or messages"),
        ('{"prompt": 7}', "prompt must be text, got 7"),
        ('{"prompt": null}', "prompt must be text, got None"),
        ('{"prompt": "a", "kind": 1}', "kind must be text, got 1"),
        ('{"prompt": "a", "answer": ["b"]}', r"answer must be text, got \['b'\]"),
        ('{"prompt": "a", "answer": ""}', "answer is empty; leave it out"),
        ('{"prompt": "a", "name": {}}', "name must be text"),
        ('{"messages": "hello"}', "messages must be a list of objects with text role and content"),
        ('{"messages": []}', "messages must be a list of objects with text role and content"),
        ('{"messages": [{"role": "user"}]}', "messages must be a list"),
        ('{"messages": [{"role": "user", "content": 1}]}', "messages must be a list"),
        ('{"messages": ["hello"]}', "messages must be a list"),
        ('{"prompt": ""}', "the prompt is empty; give it at least one token"),
        ('{"prompt": "b", "name": "prompts.jsonl:1"}', "another prompt is named .*; give each"),
    ],
)
def test_a_broken_line_is_named_with_its_remedy(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, line: str, sentence: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n")
    with pytest.raises(PromptsFileError, match=rf"prompts\.jsonl:3: {sentence}") as caught:
        read_prompts(path, tokenizer)
    assert isinstance(caught.value, ProfilerError)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_template_that_refuses_the_messages(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "prompts.jsonl", {"messages": [{"role": "user", "content": "hello"}]})
    for template in ("{{ raise_exception('roles must alternate') }}", None):
        monkeypatch.setattr(tokenizer, "chat_template", template)
        with pytest.raises(PromptsFileError, match=r"prompts\.jsonl:1: .*use raw prompts"):
            read_prompts(path, tokenizer)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_prompts(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, content: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(PromptsFileError, match=r"prompts\.jsonl holds no prompt; give it one JSON"):
        read_prompts(path, tokenizer)


def test_what_is_no_readable_text(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b'{"prompt": "caf\xe9"}')
    for path in (latin, tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(PromptsFileError, match="cannot be read as UTF-8 text") as caught:
            read_prompts(path, tokenizer)
        assert str(path) in str(caught.value)
