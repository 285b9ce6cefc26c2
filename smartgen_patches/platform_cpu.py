"""A portable CPU platform for SGLang: any x86-64 or Arm machine, no AMX, no `sgl_kernel`.

SGLang asks `activate()` in every process. The platform is taken only where SGLang would find no
accelerator; elsewhere it stays out of the way. Defaults that make two servers fit one small
machine are declared in `cpu_defaults.py`.
"""

from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform
from smartgen.config import variable

DISPATCH_KEY = "smartgen_cpu"
# Element types that SmartGen's kernels take; others stay with SGLang's operators.
KERNEL_DTYPES = (torch.bfloat16, torch.float32)
_QUALIFIED_NAME = "smartgen_patches.platform_cpu.PortableCpuPlatform"


def activate() -> str | None:
    """The platform's class path, or None where SGLang has (or was told to use) another device."""
    if variable("SGLANG_USE_CPU_ENGINE") == "1" or _accelerator_present():
        return None
    return _QUALIFIED_NAME


def _accelerator_present() -> bool:
    """Whether SGLang's own discovery would find a device (the same probes, in any order)."""
    if torch.cuda.is_available() or torch.xpu.is_available():
        return True
    if hasattr(torch, "npu") and torch.npu.is_available():
        return True
    if getattr(torch.version, "musa", None) is not None:
        return True
    return bool(torch.backends.mps.is_available())


class PortableCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """CPU serving with plain torch operators plus SmartGen's own kernels."""

    _enum = PlatformEnum.OOT
    # All False: no graph capture, no Triton allocator kernels, no pinned memory.
    capabilities = PlatformCapabilities()

    def get_device(self, device_id: int = 0) -> Any:
        # The mixin answers with a torch.device, but SGLang splits the answer as a string.
        return "cpu"

    def get_default_attention_backend(self) -> str:
        # SGLang tests this name in places that would otherwise call Triton; the class behind it
        # is ours (attention.py).
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        # Operators registered under this key (cpu_ops.py) come before SGLang's plain torch ones.
        return DISPATCH_KEY

    def get_torch_profiler_activity_str(self) -> str:
        return "CPU"

    def get_torch_profiler_activity(self) -> Any:
        return torch.profiler.ProfilerActivity.CPU

    def init_backend(self) -> None:
        """Called in each worker before the model is built."""
        threads = variable("OMP_NUM_THREADS")
        if threads and threads.isdigit():
            torch.set_num_threads(int(threads))
