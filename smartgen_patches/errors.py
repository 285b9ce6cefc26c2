"""How the seam refuses to start."""

import sys


class StartRefused(SystemExit):
    """Ends the process with one sentence that names the cause and the remedy.

    A SystemExit because SGLang logs and ignores a plugin's ordinary exceptions.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        print(f"smartgen: {reason}", file=sys.stderr, flush=True)
        super().__init__(1)
