"""Runs methods over prompts and says what each costs, one row per prompt and method."""

from collections.abc import Sequence
from typing import Any

from smartgen.ops import Backend
from smartgen.profile import Profile
from smartgen.profiler.causal_lm import CausalLM
from smartgen.profiler.methods import Choice, Method
from smartgen.profiler.policies import OnDemand
from smartgen.profiler.prompts import Prompt
from smartgen.profiler.sample import Sample, Sampler
from smartgen.profiler.scoring import Outcome, compare, negative_log_likelihood

Row = dict[str, Any]


class Judge:
    """`rows` of a prompt: the full-KV answer first, then every method on the same sample.

    only_right  a question that full KV answers wrong is dropped; it has a "full" row and nothing else
    """

    def __init__(
        self,
        sampler: Sampler,
        ops: Backend,
        profile: Profile,
        methods: Sequence[Method],
        *,
        only_right: bool,
    ) -> None:
        self._sampler = sampler
        self._ops = ops
        self._profile = profile
        self._methods = tuple(methods)
        self._only_right = only_right
        self._keep_all = any("accumulated" in method.selector for method in methods)

    def rows(self, prompt: Prompt) -> list[Row]:
        """Plain JSON values; the first row is full KV itself."""
        sample = self._sampler.sample(prompt, keep_all=self._keep_all)
        right = is_right(self._sampler.model, prompt, sample.answer)
        full = _head(sample, "full") | {"retrieved": right, "base": 1.0}
        if right is False and self._only_right:
            return [full]
        choice = Choice(sample, self._ops, self._sampler.model.shape.layers, self._profile)
        outcomes = [(method, *self._outcome(sample, choice, method)) for method in self._methods]
        rows = [
            self._row(sample, method.name, outcome)
            | {"retrieved": self._retrieved(sample, choice, method, outcome) if right else None}
            | costs
            for method, outcome, costs in outcomes
        ]
        rows.insert(0, full)
        self._add_perplexity(sample, choice, rows)
        return rows

    def _outcome(self, sample: Sample, choice: Choice, method: Method) -> tuple[Outcome, Row]:
        policy = choice.policy(method)
        outcome = compare(sample.log_probs, self._sampler.rows(sample, policy))
        costs: Row = {"base": float(choice.chosen(method).float().mean())}
        if isinstance(policy, OnDemand):
            blocks = sample.blocks * self._sampler.model.shape.layers
            # By step; a profile may let no layer fetch.
            steps = range(len(sample.inputs))
            fetched = [sum(one[step] for one in policy.fetched.values()) / blocks for step in steps]
            costs |= {
                "digest": policy.digest_bytes / self._kv_bytes(sample),
                "fetched_first": fetched[0],
                "fetched": sum(fetched),
                "fetched_steps": [round(share, 6) for share in fetched],
            }
        return outcome, costs

    def _row(self, sample: Sample, name: str, outcome: Outcome) -> Row:
        count = len(outcome.kl)
        return _head(sample, name) | {
            "kl": sum(outcome.kl) / count,
            "agreement": sum(outcome.agree) / count,
        }

    def _retrieved(self, sample: Sample, choice: Choice, method: Method, outcome: Outcome) -> bool:
        """Only an answer that left full KV's course needs a free run, from where it left it."""
        if all(outcome.agree):
            return True
        policy = choice.policy(method)
        answer = self._sampler.free_run(sample, policy, outcome.agree.index(False))
        return is_right(self._sampler.model, sample.prompt, answer) is True

    def _add_perplexity(self, sample: Sample, choice: Choice, rows: list[Row]) -> None:
        """Negative log-likelihood of the true continuation, where there is one."""
        follows = sample.prompt.continuation
        if follows is None:
            return
        inputs, targets = follows[:-1], follows[1:]
        told = self._sampler.sample(sample.prompt, inputs=inputs)
        rows[0]["nll"] = negative_log_likelihood(told.log_probs, targets)
        for row, method in zip(rows[1:], self._methods, strict=True):
            log_probs = self._sampler.rows(told, choice.policy(method))
            row["nll"] = negative_log_likelihood(log_probs, targets)

    def _kv_bytes(self, sample: Sample) -> int:
        k = sample.kv.k[0]
        return int(2 * len(sample.kv.k) * sample.tokens * k[0].numel() * k.element_size())


def _head(sample: Sample, name: str) -> Row:
    return {
        "prompt": sample.prompt.name,
        "kind": sample.prompt.kind,
        "tokens": sample.tokens,
        "scored": len(sample.inputs),
        "method": name,
    }


def floor_of(exact: Sample, rounded: Sample) -> Outcome:
    """float32 against the server's type under full KV; both samples share their inputs."""
    return compare(exact.log_probs, rounded.log_probs)


def is_right(model: CausalLM, prompt: Prompt, answer: list[int]) -> bool | None:
    """Whether the answer contains what it should; None when the prompt asks for nothing."""
    if prompt.answer is None:
        return None
    text = model.tokenizer.decode(answer, skip_special_tokens=True)
    return prompt.answer.lower() in text.lower()
