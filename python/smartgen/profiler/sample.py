"""One prompt with all that later passes compare against: its KV, its reference answer, full-KV log-probabilities."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from smartgen.ops import Backend
from smartgen.profiler.cache import PagedKv
from smartgen.profiler.causal_lm import CausalLM
from smartgen.profiler.errors import ProfilerError
from smartgen.profiler.passes import Prefill, Rows, Visible, block_count
from smartgen.profiler.prompts import Prompt


@dataclass(kw_only=True, eq=False)
class Sample:
    """A prefilled prompt and its greedy answer under full KV.

    inputs        answer tokens whose successors are scored; the first one came from prefill
    answer        the whole answer, one token longer than `inputs` unless it was cut
    log_probs     [inputs, vocabulary] float32: full KV's distribution after each input
    layer_inputs  per layer [inputs, width]: where a pass that changes only later layers may start
    answer_q, answer_lse2   per layer, queries of the inputs under full KV, for the oracle
    """

    prompt: Prompt
    block_size: int
    scale: float
    kv: PagedKv
    prefill: Prefill
    inputs: list[int]
    answer: list[int]
    log_probs: Tensor
    layer_inputs: list[Tensor]
    answer_q: list[Tensor]
    answer_lse2: list[Tensor]

    @property
    def tokens(self) -> int:
        return len(self.prompt.tokens)

    @property
    def blocks(self) -> int:
        return block_count(self.tokens, self.block_size)


class Sampler:
    """Makes samples with one model and one set of operators."""

    def __init__(
        self, model: CausalLM, ops: Backend, *, page_size: int, block_size: int, answer_tokens: int
    ) -> None:
        if block_size % page_size:
            raise ProfilerError(f"block size {block_size} is no multiple of page size {page_size}")
        self.model = model
        self.ops = ops
        self.page_size = page_size
        self.block_size = block_size
        self.answer_tokens = answer_tokens

    def check(self, prompts: Iterable[Prompt]) -> None:
        """Raises ProfilerError for the first prompt that the model cannot take with its answer."""
        for prompt in prompts:
            follows = len(prompt.continuation or ())
            self._refuse_unfit(prompt, max(self.answer_tokens, follows - 1))

    def sample(
        self, prompt: Prompt, *, inputs: list[int] | None = None, keep_all: bool = False
    ) -> Sample:
        """Prefill, answer greedily unless `inputs` are given, then the full-KV pass over the answer.

        keep_all keeps every prompt query (accumulated attention needs them), not only the last ones.
        """
        answered = max(self.answer_tokens, len(inputs or ()))
        self._refuse_unfit(prompt, answered)
        tokens = len(prompt.tokens)
        kv = PagedKv(self.model.shape.cache(self.page_size), tokens + answered + 1)
        prefill = Prefill(ops=self.ops, kv=kv, tokens=tokens, keep_all=keep_all)
        hidden = self.model.run(self.model.embed(prompt.tokens), 0, prefill)
        first = int(self.model.logits(hidden[-1:]).argmax())
        answer = [first] if inputs is None else [*inputs]
        if inputs is None:
            answer = self._greedy(kv, tokens, [first], None)
            inputs = answer[:-1] if len(answer) > 1 else answer
        layer_inputs: list[Tensor] = []
        rows = Rows(
            ops=self.ops, kv=kv, tokens=tokens, start=tokens, block_size=self.block_size, keep=True
        )
        out = self.model.run(self.model.embed(inputs), tokens, rows, keep=layer_inputs)
        return Sample(
            prompt=prompt,
            block_size=self.block_size,
            scale=self.model.shape.head_size**-0.5,
            kv=kv,
            prefill=prefill,
            inputs=inputs,
            answer=answer,
            log_probs=torch.log_softmax(self.model.logits(out), dim=-1),
            layer_inputs=layer_inputs,
            answer_q=rows.q,
            answer_lse2=rows.lse2,
        )

    def free_run(self, sample: Sample, visible: Visible | None, agreed: int = 0) -> list[int]:
        """The greedy answer when only `visible` blocks are there from the first decode step on.

        agreed  inputs after which it is known to say the same as full KV: those go in one pass
        """
        return self._greedy(sample.kv, sample.tokens, sample.inputs[: agreed + 1], visible)

    def rows(self, sample: Sample, visible: Visible | None, first_layer: int = 0) -> Tensor:
        """Log-probabilities after each input, [inputs, vocabulary], with layers from first_layer on restricted."""
        rows = Rows(
            ops=self.ops,
            kv=sample.kv,
            tokens=sample.tokens,
            start=sample.tokens,
            block_size=self.block_size,
            visible=visible,
        )
        hidden = sample.layer_inputs[first_layer]
        out = self.model.run(hidden, sample.tokens, rows, first_layer=first_layer)
        return torch.log_softmax(self.model.logits(out), dim=-1)

    def _refuse_unfit(self, prompt: Prompt, answered: int) -> None:
        tokens, context = len(prompt.tokens), self.model.shape.context
        if tokens == 0:
            raise ProfilerError(f"prompt {prompt.name} is empty; give it at least one token")
        if tokens + answered > context:
            raise ProfilerError(
                f"prompt {prompt.name} has {tokens} tokens; with {answered} for the answer that exceeds "
                f"the model's context of {context}: shorten the prompt"
            )

    def _greedy(
        self, kv: PagedKv, tokens: int, begun: list[int], visible: Visible | None
    ) -> list[int]:
        """Goes on from the answer that has `begun`."""
        answer, fresh = [*begun], begun
        while len(answer) <= self.answer_tokens and answer[-1] not in self.model.end_tokens:
            start = tokens + len(answer) - len(fresh)
            rows = Rows(
                ops=self.ops,
                kv=kv,
                tokens=tokens,
                start=start,
                block_size=self.block_size,
                visible=visible,
            )
            hidden = self.model.run(self.model.embed(fresh), start, rows)
            fresh = [int(self.model.logits(hidden[-1:]).argmax())]
            answer += fresh
        return answer
