"""Prompts to calibrate and to judge with: made from text that every machine has, or read from a file.

Documentation and code come from the Python standard library of the running interpreter (PSF licence; nothing of it is
shipped here); stories, facts and questions are made from word lists. Which prompts may train a profile and which
judge it is decided by a hash of the document they were cut from, so that no text is on both sides.
"""

from smartgen.profiler.prompts.files import PromptsFileError, read_prompts
from smartgen.profiler.prompts.made import KINDS, make_prompts
from smartgen.profiler.prompts.prompt import Prompt, Split, fingerprint, split_of

__all__ = [
    "KINDS",
    "Prompt",
    "PromptsFileError",
    "Split",
    "fingerprint",
    "make_prompts",
    "read_prompts",
    "split_of",
]
