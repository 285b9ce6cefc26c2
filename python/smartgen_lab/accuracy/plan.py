"""The methods that are compared."""

from typing import Final

from smartgen.profile import Profile
from smartgen.profiler.methods import Demand, Method

BASELINE: Final = "window-32-mean"
_UNIFORM: Final = (
    BASELINE,
    "position",
    "accumulated",
    "accumulated-mean",
    "quest",
    "means-8",
    "sinks-recent",
    "random",
    "oracle",
)


def standard_methods(profile: Profile) -> list[Method]:
    """Every selector alike in all layers, the profile's budgets, and on-demand fetching on top."""
    signal = profile.signal.selector
    methods = [
        Method(selector=name, budget="uniform", fraction=fraction)
        for name in dict.fromkeys((*_UNIFORM, signal))
        for fraction in (0.1, 0.2)
    ]
    methods += [
        Method(selector=name, budget="uniform", fraction=0.3)
        for name in dict.fromkeys((BASELINE, signal))
    ]
    methods += [
        Method(selector=signal, budget="profile", fraction=fraction)
        for fraction in (0.05, 0.1, 0.2, 0.3, 0.5)
    ]
    methods += [Method(selector="oracle", budget="profile", fraction=f) for f in (0.1, 0.2)]
    for fraction in (0.1, 0.2):
        for digest, layers in (
            (profile.on_demand.digest, "all"),
            (profile.on_demand.digest, "profile"),
            ("quest", "all"),
            ("mean", "all"),
        ):
            demand = Demand(digest=digest, layers=layers)  # type: ignore[arg-type]
            methods.append(
                Method(selector=signal, budget="profile", fraction=fraction, demand=demand)
            )
    return [*{method.name: method for method in methods}.values()]
