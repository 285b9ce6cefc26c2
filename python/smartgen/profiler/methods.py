"""A method is a way to choose blocks: signal, budget over layers, share of the bytes, and what is fetched later."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from smartgen import select
from smartgen.ops import Backend
from smartgen.profile import Profile
from smartgen.profiler.evidence import LayerEvidence
from smartgen.profiler.measure import plan_masks
from smartgen.profiler.policies import Fixed, OnDemand
from smartgen.profiler.sample import Sample


@dataclass(frozen=True, kw_only=True)
class Demand:
    """On-demand fetching: in the profile's layers or in all, `top` of a prompt's blocks per step and layer."""

    digest: str
    layers: Literal["profile", "all"]
    top: float = 0.10


@dataclass(frozen=True, kw_only=True)
class Method:
    """fraction: share of the prompt's KV bytes that is there before the first decode step."""

    selector: str
    budget: Literal["uniform", "profile"]
    fraction: float
    demand: Demand | None = None

    @property
    def name(self) -> str:
        name = f"{self.selector}/{self.budget}/{self.fraction:g}"
        if self.demand is None:
            return name
        return f"{name}+{self.demand.digest}/{self.demand.layers}/{self.demand.top:g}"


class Choice:
    """Evidence and scores of one sample, shared by the methods that look at it."""

    def __init__(self, sample: Sample, ops: Backend, layers: int, profile: Profile) -> None:
        self._sample = sample
        self._ops = ops
        self._profile = profile
        self._evidence = [LayerEvidence(sample, ops, layer, layers) for layer in range(layers)]
        self._scores: dict[str, select.Floats] = {}
        self.forced = select.always(sample.tokens, sample.block_size)

    def scores(self, selector: str) -> select.Floats:
        """[layers, blocks] float32."""
        if selector not in self._scores:
            chosen = select.selector(selector, profile=self._profile)
            self._scores[selector] = select.score_layers(chosen, self._evidence)
        return self._scores[selector]

    def chosen(self, method: Method) -> Tensor:
        """bool [layers, blocks]: the plan's blocks."""
        layers = len(self._evidence)
        tokens, blocks = self._sample.tokens, self._sample.blocks
        if method.budget == "profile":
            counts = select.solve_bytes(
                self._profile, tokens=tokens, fraction=method.fraction
            ).counts
        else:
            counts = (max(len(self.forced), round(method.fraction * blocks)),) * layers
        plan = select.plan(self.scores(method.selector), counts, self.forced)
        return plan_masks(plan, blocks)

    def policy(self, method: Method) -> Fixed | OnDemand:
        """What the answer's tokens may see; OnDemand keeps state, so take a new one for each pass."""
        chosen = self.chosen(method)
        if method.demand is None:
            return Fixed(chosen)
        layers = (
            range(len(self._evidence))
            if method.demand.layers == "all"
            else self._profile.on_demand.layers
        )
        return OnDemand(
            self._sample,
            self._ops,
            chosen,
            digest=method.demand.digest,
            layers=frozenset(layers),
            top=max(1, round(method.demand.top * self._sample.blocks)),
        )
