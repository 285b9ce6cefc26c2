"""The `--smartgen-*` flags on SGLang's command line, and how their values travel.

Values ride as plain data on `server_args._smartgen`: underscore names survive resolution, sealing
and pickling into the child processes.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smartgen.config import (
    Settings,
    SettingsError,
    add_flags,
    settings_from_environment,
    settings_from_mapping,
    settings_from_namespace,
    settings_to_mapping,
)

from smartgen_patches.errors import StartRefused

BACKEND_NAME = "smartgen"


def after_add_cli_args(result: None, parser: argparse.ArgumentParser) -> None:
    """Hook on ServerArgs.add_cli_args: our group of flags beside SGLang's."""
    add_flags(parser)


def around_from_cli_args(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Hook on ServerArgs.from_cli_args: keep our values, which SGLang's record has no field for."""
    server_args = original(*args, **kwargs)
    namespace: argparse.Namespace = kwargs["args"] if "args" in kwargs else args[-1]
    try:
        server_args._smartgen = settings_to_mapping(settings_from_namespace(namespace))
    except SettingsError as error:
        raise StartRefused(str(error)) from error
    if server_args.disaggregation_transfer_backend == BACKEND_NAME:
        _refuse_missing_model(server_args.model_path)
    return server_args


def _refuse_missing_model(model_path: str) -> None:
    """A path that is plainly local must exist; SGLang would ask a model hub for it, and at once."""
    local = model_path.startswith(("/", "./", "../", "~"))
    if local and not (Path(model_path).expanduser() / "config.json").is_file():
        raise StartRefused(
            f"--model-path {model_path} has no config.json; give a Hugging Face model folder "
            "(`smartgen model fetch` makes one)"
        )


def attach_settings(server_args: Any) -> Settings:
    """The settings of `server_args`, completed from the environment for callers without flags."""
    stored = getattr(server_args, "_smartgen", None)
    if stored is not None:
        return settings_from_mapping(stored)
    settings = settings_from_environment()
    server_args._smartgen = settings_to_mapping(settings)
    return settings


def settings_of(server_args: Any) -> Settings | None:
    """The settings, or None where this server does not use the smartgen backend."""
    if server_args.disaggregation_transfer_backend != BACKEND_NAME:
        return None
    stored = getattr(server_args, "_smartgen", None)
    return settings_from_mapping(stored) if stored is not None else Settings()
