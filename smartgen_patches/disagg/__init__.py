"""SmartGen's KV manager, sender and receiver: subclasses of SGLang's Mooncake ones.

Imported only from inside the `get_kv_class` hook, because SGLang's Mooncake module creates
Prometheus counters when it is imported.
"""

from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender
from sglang.srt.disaggregation.utils import KVClassType

from smartgen_patches.disagg.manager import SmartGenKVManager
from smartgen_patches.disagg.receiver import SmartGenKVReceiver
from smartgen_patches.disagg.sender import SmartGenKVSender

__all__ = ["CLASSES", "CpuMooncakeSender"]


class CpuMooncakeSender(MooncakeKVSender):
    """Stock Mooncake on the CPU platform: page numbers through NumPy, not pinned CUDA memory."""

    supports_host_tensor_indices = False


CLASSES = {
    KVClassType.MANAGER: SmartGenKVManager,
    KVClassType.SENDER: SmartGenKVSender,
    KVClassType.RECEIVER: SmartGenKVReceiver,
}
