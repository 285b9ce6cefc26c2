"""When `scripts/install` has something to do, and what it says when it cannot."""

import importlib.util
import os
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from smartgen.transport import SYSTEM_LIBRARIES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install_script", ROOT / "scripts/install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", "constraints.txt", "scripts/install.py", "sgl-kernel/a.cpp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    "name", ["pyproject.toml", "constraints.txt", "scripts/install.py", "sgl-kernel/a.cpp"]
)
def test_the_digest_changes_with_every_input(install, root, name):
    before = install.digest_of(root)
    assert install.digest_of(root) == before
    (root / name).write_text("changed")
    assert install.digest_of(root) != before


def test_the_digest_ignores_what_a_build_leaves_behind(install, root):
    before = install.digest_of(root)
    for name in ("build/x.o", "python/__pycache__/x.pyc", "python/_C.so"):
        (root / "sgl-kernel" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "sgl-kernel" / name).write_text("built")
    assert install.digest_of(root) == before
    (root / "sgl-kernel" / "b.h").write_text("new source")
    assert install.digest_of(root) != before


def test_a_stamp_serves_its_flavour_and_dev_serves_both(install, tmp_path):
    install.stamp_file(tmp_path, "cpu", False).write_text("digest")
    assert install.is_stamped(tmp_path, "digest", "cpu", False)
    assert not install.is_stamped(tmp_path, "digest", "cpu", True)
    assert not install.is_stamped(tmp_path, "digest", "cuda", False)
    assert not install.is_stamped(tmp_path, "other", "cpu", False)
    install.stamp_file(tmp_path, "cpu", True).write_text("digest")
    assert install.is_stamped(tmp_path, "digest", "cpu", True)


def test_the_libraries_are_those_that_smartgen_checks(install):
    assert install._MOONCAKE_LIBRARIES == SYSTEM_LIBRARIES


def test_missing_packages_without_root_are_one_command_to_copy(install, monkeypatch):
    monkeypatch.setattr(install, "missing_packages", lambda flavour: ["libibverbs1", "g++"])
    monkeypatch.setattr(install.os, "geteuid", lambda: 1000)
    with pytest.raises(install.Refused, match=r"run: sudo apt-get install .* libibverbs1 g\+\+$"):
        install.require_system_packages("cpu")


def test_an_old_or_missing_python_is_refused(tmp_path):
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\ncase "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac\n')
    old.chmod(0o755)
    for python, sentence in (
        (str(old), "Python 3.9.2 is too old"),
        ("/no/python", "was not found"),
    ):
        done = subprocess.run(
            [ROOT / "scripts/install"],
            env={**os.environ, "PYTHON": python},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1
        assert sentence in done.stderr
