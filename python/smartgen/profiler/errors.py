"""The one error of the profiler: what is wrong with the input, and what to do."""


class ProfilerError(Exception):
    """Input that cannot be profiled or measured; the message names cause and remedy."""
