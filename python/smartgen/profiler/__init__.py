"""Offline measurements on a real model: how much each layer's blocks matter, and what a choice of blocks costs.

Runs a Hugging Face model layer by layer with SmartGen's own operators and selection policies, never a copy of them.
Builds model profiles and judges quality; no server takes part.
"""
