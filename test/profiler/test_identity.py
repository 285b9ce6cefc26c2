"""What makes two model folders the same model to a profile."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from smartgen import profile as profiles
from smartgen.profiler.causal_lm import CausalLM
from smartgen.profiler.identity import config_sha256, identity_of, software


@pytest.fixture
def changed(folder: Path, tmp_path: Path) -> Path:
    """A folder with a copy of the config only."""
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    return tmp_path


def change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_what_changes_attention_changes_the_hash(folder: Path, changed: Path) -> None:
    assert config_sha256(changed) == config_sha256(folder)
    seen = {config_sha256(folder)}
    for field in (
        {"num_hidden_layers": 4},
        {"head_dim": 32},
        {"rms_norm_eps": 1e-3},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"sliding_window": 64},
        {"vocab_size": 301},
    ):
        change(changed, **field)
        seen.add(config_sha256(changed))
    assert len(seen) == 8


def test_names_and_versions_do_not(folder: Path, changed: Path) -> None:
    change(changed, _name_or_path="elsewhere", transformers_version="0", use_cache=False)
    change(changed, sliding_window=None)
    config = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps(dict(reversed(config.items())), indent=7))
    assert config_sha256(changed) == config_sha256(folder)


def test_an_identity_is_of_the_server_that_it_is_asked_for(folder: Path, model: CausalLM) -> None:
    identity = identity_of(folder, model, 4, 8)
    assert (identity.model, identity.dtype) == ("tiny", "float32")
    assert (identity.page_size, identity.block_size) == (4, 8)
    (folder / "chat_template.jinja").stat()  # saved beside the weights
    assert identity.chat_template_sha256 is not None
    served = identity_of(folder, CausalLM(folder, torch.bfloat16), 4, 8)
    with pytest.raises(profiles.ProfileError, match=r"dtype float32, this server has bfloat16"):
        profiles.check_fits(profiles.generic(identity), served)


def test_software_names_what_took_part() -> None:
    assert {"smartgen", "torch", "transformers"} <= software().keys()
