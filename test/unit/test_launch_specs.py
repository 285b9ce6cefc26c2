"""Command lines, environments, ports and checks, as values; nothing is started."""

import re
import socket
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from smartgen.launch import (
    CheckFailed,
    LocalOptions,
    Role,
    RouterSpec,
    ServeMode,
    ServerSpec,
    checks,
    local,
    ports,
)
from smartgen.launch.server import HEALTH_CHECK_TIMEOUT_S, PATIENT_ROUTER

ROOT = Path(__file__).parents[2]


def server(role: Role = Role.PREFILL, **changes: object) -> ServerSpec:
    return ServerSpec(**{"role": role, "model": Path("/m"), "port": 30001, **changes})


def value_of(option: str, argv: list[str]) -> str:
    return argv[argv.index(option) + 1]


@pytest.mark.parametrize("mode", [ServeMode.LAYERWISE, ServeMode.FULL])
def test_smartgen_modes_use_the_smartgen_backend(mode):
    argv = server(mode=mode, bootstrap_port=9001).argv()
    assert argv[:3] == [sys.executable, "-m", "sglang.launch_server"]
    assert value_of("--disaggregation-mode", argv) == "prefill"
    assert value_of("--disaggregation-transfer-backend", argv) == "smartgen"
    assert value_of("--smartgen-mode", argv) == mode.value
    assert value_of("--disaggregation-bootstrap-port", argv) == "9001"


def test_stock_mode_uses_mooncake_over_tcp_unless_there_is_rdma():
    spec = server(mode=ServeMode.STOCK)
    assert value_of("--disaggregation-transfer-backend", spec.argv()) == "mooncake"
    assert "--smartgen-mode" not in spec.argv()
    environment = spec.full_environment({})
    assert environment["MC_FORCE_TCP"] == "1"
    assert environment["MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER"] == "65535"
    assert "MC_FORCE_TCP" not in server(mode=ServeMode.STOCK, rdma=True).full_environment({})
    assert "MC_FORCE_TCP" not in server(mode=ServeMode.FULL).full_environment({})


def test_decode_has_no_bootstrap_port_and_aggregated_no_transfer():
    assert "--disaggregation-bootstrap-port" not in server(Role.DECODE).argv()
    assert not any("disaggregation" in word for word in server(Role.AGGREGATED).argv())


def test_prefix_comes_first_and_extra_last():
    spec = server(prefix=("ip", "netns", "exec", "p0"), extra=("--page-size", "32"))
    assert spec.argv()[:5] == ["ip", "netns", "exec", "p0", sys.executable]
    assert spec.argv()[-2:] == ["--page-size", "32"]


def test_environment_layers_inherited_ours_own():
    spec = server(host="10.1.0.2", environment={"OMP_NUM_THREADS": "1"})
    environment = spec.full_environment({"no_proxy": "example.org", "HOME": "/h"})
    assert environment["SGLANG_HOST_IP"] == "10.1.0.2"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["HOME"] == "/h"
    assert environment["no_proxy"] == "example.org,127.0.0.1,localhost,10.1.0.2"
    assert spec.full_environment({"SGLANG_HOST_IP": "1.2.3.4"})["SGLANG_HOST_IP"] == "10.1.0.2"


def test_any_address_is_reached_over_loopback():
    spec = server(host="0.0.0.0")
    assert spec.url == "http://127.0.0.1:30001"
    assert spec.full_environment({})["SGLANG_HOST_IP"] == "127.0.0.1"
    assert server(host="::").url == "http://[::1]:30001"


def test_router_knows_every_server_and_is_patient():
    argv = RouterSpec(
        prefills=(("http://p:1", 11), ("http://q:2", 12)),
        decodes=("http://d:3",),
        port=8000,
        metrics_port=9000,
        extra=("--policy", "random"),
    ).argv()
    first = argv.index("--prefill")
    assert argv[first : first + 6] == [
        *("--prefill", "http://p:1", "11", "--prefill", "http://q:2", "12")
    ]
    assert value_of("--decode", argv) == "http://d:3"
    assert value_of("--prometheus-port", argv) == "9000"
    assert float(value_of("--health-check-timeout-secs", argv)) > float(
        server().full_environment({})["SGLANG_HEALTH_CHECK_TIMEOUT"]
    )
    assert "--disable-circuit-breaker" in argv
    assert argv[-2:] == ["--policy", "random"]


def options(argv: Iterable[str]) -> dict[str, str]:
    """Option to value, "" for one without."""
    found: dict[str, str] = {}
    for word in argv:
        if word.startswith("--"):
            last = word
            found[last] = ""
        else:
            found[last] = word
    return found


def test_the_router_is_started_alike_by_compose():
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    started = options(compose["router"]["command"].partition("launch_router ")[2].split())
    for where in ("--pd-disaggregation", "--prefill", "--decode", "--host", "--port"):
        del started[where]
    assert started == options(PATIENT_ROUTER)
    for name in ("prefill", "decode"):
        health = compose[name]["environment"]["SGLANG_HEALTH_CHECK_TIMEOUT"]
        assert health == str(HEALTH_CHECK_TIMEOUT_S)


def test_the_readme_tells_how_the_router_is_started():
    section = (ROOT / "README.md").read_text().partition("### The router on a busy CPU")[2]
    rows = re.findall(r"^\| `(--[a-z-]+)` \|\s*`?([^`|]*?)`?\s*\|", section, re.MULTILINE)
    assert dict(rows) == options(PATIENT_ROUTER)


def test_picked_ports_are_free_different_and_outside_mooncakes_range():
    found = ports.pick(20)
    assert len(set(found)) == 20
    assert not set(found) & set(ports.MOONCAKE_PORTS)
    assert all(ports.is_free("127.0.0.1", port) for port in found)


def test_a_port_in_use_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(CheckFailed, match=f"--port {port} is in use on 127.0.0.1; stop"):
            ports.require_free({"--port": ("127.0.0.1", port)})


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"--port": ("127.0.0.1", 15500)}, "Mooncake picks its own ports"),
        ({"--port": ("127.0.0.1", 70000)}, "is not a port"),
        (
            {"--port": ("127.0.0.1", 25001), "--decode-port": ("127.0.0.1", 25001)},
            "--decode-port and --port are both 25001",
        ),
        ({"--port": ("203.0.113.1", 25001)}, "cannot listen on 203.0.113.1"),
    ],
)
def test_unusable_ports_are_refused(wanted, reason):
    with pytest.raises(CheckFailed, match=reason):
        ports.require_free(wanted)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_a_sound_model_folder_passes(model):
    checks.require_model(model)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", None, "config.json cannot be read"),
        ("config.json", "{", "config.json cannot be read \\(not JSON"),
        ("model.safetensors", None, "holds no weights"),
        ("tokenizer.json", None, "holds no tokenizer"),
    ],
)
def test_a_damaged_model_folder_is_refused(model, name, content, reason):
    (model / name).unlink()
    if content is not None:
        (model / name).write_text(content)
    with pytest.raises(CheckFailed, match=reason):
        checks.require_model(model)


def test_a_missing_model_folder_names_the_remedy(tmp_path):
    with pytest.raises(CheckFailed, match="is not a folder; run `smartgen model fetch`"):
        checks.require_model(tmp_path / "none")


def test_too_little_memory_is_refused(model, monkeypatch):
    monkeypatch.setattr(checks, "has_gpu", lambda: False)
    monkeypatch.setattr(
        checks.psutil, "virtual_memory", lambda: type("M", (), {"available": 6 << 30})
    )
    with pytest.raises(CheckFailed, match=r"2 servers need about 9.5 GiB .* and 6.0 GiB are"):
        checks.require_memory(model, ())
    checks.require_memory(model, ("--max-total-tokens=4096",))


def test_missing_system_libraries_name_their_packages(monkeypatch):
    monkeypatch.setattr(checks, "_loads", lambda library: library == "libcurl.so.4")
    with pytest.raises(CheckFailed, match=r"needs libibverbs.so.1 and libnuma.so.1, .*1 libnuma1$"):
        checks.require_mooncake_libraries()
    monkeypatch.setattr(checks, "_loads", lambda library: True)
    checks.require_mooncake_libraries()


def test_another_version_of_sglang_is_refused(monkeypatch):
    real = metadata.version
    monkeypatch.setattr(
        checks.importlib.metadata,
        "version",
        lambda name: "0.5.24" if name == "sglang" else real(name),
    )
    with pytest.raises(CheckFailed, match=r"sglang 0.5.24 is installed .* works with 0.5.23"):
        checks.require_versions()


def test_the_pins_are_read_from_this_projects_own_metadata():
    names = [name for name, _, _ in checks.pinned_versions()]
    assert names[:2] == ["sglang", "sglang-router"]
    assert len(names) == 3
    assert names[2].startswith("mooncake-transfer-engine")


@pytest.fixture
def passing(monkeypatch):
    for name in ("require_versions", "require_mooncake_libraries", "require_memory"):
        monkeypatch.setattr(checks, name, lambda *given: None)


def test_a_local_pair_agrees_in_all_that_matters(model, tmp_path, passing):
    spec = local.plan_local_pair(
        LocalOptions(model=model, logs=tmp_path, port=25011, extra=("--page-size", "8"))
    )
    assert spec.router.url == "http://127.0.0.1:25011"
    assert spec.router.prefills == ((spec.prefill.url, spec.prefill.bootstrap_port),)
    assert spec.router.decodes == (spec.decode.url,)
    assert (spec.prefill.role, spec.decode.role) == (Role.PREFILL, Role.DECODE)
    assert spec.prefill.extra == spec.decode.extra == ("--page-size", "8")
    numbers = {spec.router.port, spec.router.metrics_port, spec.prefill.port, spec.decode.port}
    assert len(numbers | {spec.prefill.bootstrap_port}) == 5


@pytest.mark.parametrize("option", ["--port", "--model-path=/x", "--smartgen-mode"])
def test_options_that_smartgen_sets_are_refused(model, tmp_path, passing, option):
    with pytest.raises(CheckFailed, match="is set by smartgen itself"):
        local.plan_local_pair(LocalOptions(model=model, logs=tmp_path, extra=(option, "1")))
