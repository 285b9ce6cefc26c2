"""How far a restricted pass is from full KV."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Outcome:
    """Per scored position: KL(full || restricted) in nats, and whether the most likely token is the same."""

    kl: list[float]
    agree: list[bool]


def compare(full: Tensor, restricted: Tensor) -> Outcome:
    """Both [positions, vocabulary] log-probabilities, float32."""
    kl = (full.exp() * (full - restricted)).sum(-1).clamp_min(0.0)
    agree = full.argmax(-1) == restricted.argmax(-1)
    return Outcome(kl.tolist(), agree.tolist())


def negative_log_likelihood(log_probs: Tensor, targets: list[int]) -> float:
    """Mean over the targets, in nats; log_probs [len(targets), vocabulary]."""
    picked = log_probs[torch.arange(len(targets)), torch.tensor(targets)]
    return float(-picked.mean())
