"""What happens when SGLang loads the plugin: verify, accept the names, register the hooks."""

from sglang.srt.arg_groups.choices import add_disagg_transfer_backend_choices
from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from smartgen_patches.args import BACKEND_NAME
from smartgen_patches.attention import install_attention_backend
from smartgen_patches.cpu_defaults import apply_platform_defaults
from smartgen_patches.cpu_ops import install_cpu_ops
from smartgen_patches.hooks import hooks_here
from smartgen_patches.resolution import resolve_pd_disaggregation
from smartgen_patches.verify import refuse_unless_verified


def register_hooks() -> None:
    """Everything that makes SGLang serve with SmartGen. Raises StartRefused."""
    refuse_unless_verified()
    add_disagg_transfer_backend_choices([BACKEND_NAME])
    register_resolution_hook("handle_pd_disaggregation")(resolve_pd_disaggregation)
    register_resolution_hook("handle_platform_defaults")(apply_platform_defaults)
    for hook in hooks_here():
        HookRegistry.register(hook.target, hook.handler, HookType(hook.kind))
    install_attention_backend()
    install_cpu_ops()
