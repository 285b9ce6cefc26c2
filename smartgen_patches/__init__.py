"""The seam between SmartGen and SGLang 0.5.23: the only importer of `sglang`.

SGLang calls `register()` once in every process. Everything is verified first and any mismatch
ends the process with one sentence: SGLang only logs a plugin's ordinary exceptions, which would
leave SmartGen silently off.
"""

__all__ = ["register"]


def register() -> None:
    """Entry point `sglang.srt.plugins`. Raises StartRefused (a SystemExit) if anything is off."""
    # Imported here: SGLang imports this package while it is still choosing its platform, and
    # the hooks need the platform to be chosen.
    from smartgen_patches.registration import register_hooks

    register_hooks()
