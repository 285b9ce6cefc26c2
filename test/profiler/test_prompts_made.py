"""Made prompts: reproducible, apart by split, of the wanted length, and with an answer to find."""

import pytest
from smartgen.profiler.prompts import (
    KINDS,
    Prompt,
    Split,
    fingerprint,
    make_prompts,
    sources,
    split_of,
)
from transformers import PreTrainedTokenizerFast

COUNTS = dict.fromkeys(KINDS, 3)
ASKING = ("needle", "multi-needle", "question")
GOING_ON = ("code", "prose")


@pytest.fixture(scope="module")
def made(tokenizer: PreTrainedTokenizerFast) -> dict[Split, list[Prompt]]:
    return {split: make_prompts(tokenizer, split, COUNTS, seed=1) for split in Split}


def every(made: dict[Split, list[Prompt]], kinds: tuple[str, ...] = KINDS) -> list[Prompt]:
    return [prompt for prompts in made.values() for prompt in prompts if prompt.kind in kinds]


def document(prompt: Prompt) -> str:
    return prompt.name.partition(":")[2]


def test_the_same_arguments_give_the_same_prompts(
    tokenizer: PreTrainedTokenizerFast, made: dict[Split, list[Prompt]]
) -> None:
    again = make_prompts(tokenizer, Split.TRAIN, COUNTS, seed=1)
    assert again == made[Split.TRAIN]
    assert fingerprint(again) == fingerprint(made[Split.TRAIN])
    other = make_prompts(tokenizer, Split.TRAIN, COUNTS, seed=2)
    assert all(a.tokens != b.tokens for a, b in zip(again, other, strict=True))


def test_counts_and_names(made: dict[Split, list[Prompt]]) -> None:
    for prompts in made.values():
        assert {kind: sum(p.kind == kind for p in prompts) for kind in KINDS} == COUNTS
        assert len({prompt.name for prompt in prompts}) == len(prompts)


def test_train_and_held_out_share_no_document(made: dict[Split, list[Prompt]]) -> None:
    used = {split: {document(prompt) for prompt in made[split]} for split in Split}
    assert all(used.values())
    assert not used[Split.TRAIN] & used[Split.HELD_OUT]
    for split, documents in used.items():
        stories = {name for name in documents if name.endswith("/story")}
        assert stories <= {f"{split.value}/story"}
        assert all(split_of(name) is split for name in documents - stories)


def test_both_splits_have_documents_of_both_sorts() -> None:
    for documents in (sources.documentation(), sources.code()):
        assert {split_of(name) for name in documents} == {*Split}


def test_lengths_are_in_range_and_spread(made: dict[Split, list[Prompt]]) -> None:
    """900 to 3800 tokens of context, some hundreds of facts and questions around them."""
    assert all(800 <= len(prompt.tokens) <= 4800 for prompt in every(made))
    assert all(len(prompt.tokens) <= 3800 for prompt in every(made, GOING_ON))
    for kind in KINDS:
        lengths = [len(p.tokens) for p in made[Split.TRAIN] if p.kind == kind]
        assert lengths[0] < 2200 < 2400 < lengths[-1]


def test_the_answer_occurs_in_the_text_and_not_in_the_question(
    made: dict[Split, list[Prompt]], tokenizer: PreTrainedTokenizerFast
) -> None:
    for prompt in every(made, ASKING):
        text, _, question = tokenizer.decode(prompt.tokens).rpartition("\n\n")
        assert prompt.answer
        assert prompt.answer in text
        assert prompt.answer not in question
        assert question.endswith("<assistant>")
    assert all(prompt.answer is None for prompt in every(made, (*GOING_ON, "summary")))


def test_what_follows_is_what_the_document_says(
    made: dict[Split, list[Prompt]], tokenizer: PreTrainedTokenizerFast
) -> None:
    texts = sources.documentation() | sources.code()
    for prompt in every(made, GOING_ON):
        assert prompt.continuation is not None
        assert len(prompt.continuation) == 33
        whole = tokenizer.decode([*prompt.tokens, *prompt.continuation])
        assert whole in texts[document(prompt)]
    assert all(prompt.continuation is None for prompt in every(made, (*ASKING, "summary")))


def test_the_fingerprint_is_of_all_that_counts() -> None:
    prompt = Prompt(name="a", kind="b", tokens=[1, 2], answer="c", continuation=[3])
    others = [
        Prompt(name="x", kind="b", tokens=[1, 2], answer="c", continuation=[3]),
        Prompt(name="a", kind="x", tokens=[1, 2], answer="c", continuation=[3]),
        Prompt(name="a", kind="b", tokens=[12], answer="c", continuation=[3]),
        Prompt(name="a", kind="b", tokens=[1, 2], answer="x", continuation=[3]),
        Prompt(name="a", kind="b", tokens=[1, 2], answer="c", continuation=[4]),
    ]
    assert len({fingerprint([one]) for one in (prompt, *others)}) == 6
    assert fingerprint([prompt, others[0]]) != fingerprint([others[0], prompt])
