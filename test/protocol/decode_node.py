"""A process that only owns memory, run by test_mooncake_pair.py as a script.

Arguments: pool file, entries, bytes per entry. Prints one JSON line {session, bases}, then lives
until its standard input ends.
"""

import json
import os
import sys

import numpy as np
from smartgen.transport import MooncakeTransport


def main() -> None:
    path, entries, nbytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    pool = np.memmap(path, dtype=np.uint8, mode="r+", shape=(entries, nbytes))
    transport = MooncakeTransport(host="127.0.0.1", protocol="tcp")
    bases = [int(entry.ctypes.data) for entry in pool]
    for base in bases:
        transport.register(base, nbytes)
    print(json.dumps({"session": transport.session, "bases": bases}), flush=True)
    sys.stdin.read()
    os._exit(0)  # the engine's threads do not end by themselves


main()
