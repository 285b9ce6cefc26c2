"""`smartgen up`: serve on this machine until Ctrl-C or until one of the processes ends."""

import time
from dataclasses import dataclass
from pathlib import Path

from smartgen.cli.screen import notes, results
from smartgen.cli.serving import fetched_model, new_log_folder, running_pair
from smartgen.launch import LocalOptions, Pair, ServeMode

_WATCH_EVERY_S = 0.5


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """The command's options; None where the default depends on the machine."""

    model: Path | None
    mode: ServeMode
    host: str
    port: int
    prefill_port: int
    decode_port: int
    bootstrap_port: int
    logs: Path | None
    start_timeout_s: float
    extra: tuple[str, ...]


def run(options: UpOptions) -> None:
    """Returns after Ctrl-C; raises LaunchError when something is wrong or a process ends."""
    try:
        local = LocalOptions(
            model=options.model.absolute() if options.model is not None else fetched_model(),
            logs=options.logs.absolute() if options.logs is not None else new_log_folder(),
            mode=options.mode,
            host=options.host,
            port=options.port,
            prefill_port=options.prefill_port,
            decode_port=options.decode_port,
            bootstrap_port=options.bootstrap_port,
            start_timeout_s=options.start_timeout_s,
            extra=options.extra,
        )
        with running_pair(local) as pair:
            _announce(pair)
            while True:
                pair.require_alive()
                time.sleep(_WATCH_EVERY_S)
    except KeyboardInterrupt:
        notes.print("stopped")


def _announce(pair: Pair) -> None:
    url = pair.spec.router.url
    question = '{"role": "user", "content": "What is the capital of France?"}'
    body = f'{{"model": "default", "max_tokens": 64, "temperature": 0, "messages": [{question}]}}'
    results.print(f"serving at {url}/v1 (Ctrl-C stops)", markup=False)
    results.print(
        f"curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
        markup=False,
    )
