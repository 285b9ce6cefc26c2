"""SmartGen: selective KV-cache transfer for prefill-decode disaggregation.

This package is the product and knows nothing of SGLang; `smartgen_patches` is the only
place that joins the two.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
