"""Settings of SmartGen, said once: flags, environment, help and README table come from here."""

from smartgen.config.environment import (
    provide_variables,
    replaced_variable,
    set_variable,
    variable,
)
from smartgen.config.flags import (
    ENVIRONMENT_VARIABLE,
    add_flags,
    settings_from_environment,
    settings_from_mapping,
    settings_from_namespace,
    settings_table,
    settings_to_mapping,
)
from smartgen.config.settings import (
    CPU_KV_POOL_BYTES,
    OnUnsupported,
    Protocol,
    Settings,
    SettingsError,
)

__all__ = [
    "CPU_KV_POOL_BYTES",
    "ENVIRONMENT_VARIABLE",
    "OnUnsupported",
    "Protocol",
    "Settings",
    "SettingsError",
    "add_flags",
    "provide_variables",
    "replaced_variable",
    "set_variable",
    "settings_from_environment",
    "settings_from_mapping",
    "settings_from_namespace",
    "settings_table",
    "settings_to_mapping",
    "variable",
]
