"""What servers of a measurement are started with; nothing is started here but a dummy."""

import itertools
from pathlib import Path

import pytest
from smartgen.launch import ProcessDied, Role, ServeMode, ServerSpec
from smartgen_lab.cluster import Ground, Place, Servers, aggregated, local_place, local_places, pair

GROUND = Ground(model=Path("/model"), chunk_tokens=1024)
BACKEND = ("--disaggregation-transfer-backend", "--smartgen-mode")


def places() -> tuple[Place, Place]:
    """As in a lab: KV has its own network."""
    prefill, decode = (
        Place(
            address=f"10.77.0.{n}",
            data_address=f"10.77.1.{n}",
            port=30000,
            bootstrap_port=8998,
            prefix=("in", str(n)),
        )
        for n in (1, 2)
    )
    return prefill, decode


def without_backend(spec: ServerSpec) -> list[str]:
    argv = spec.argv()
    dropped = {i for i, word in enumerate(argv) if word in BACKEND}
    return [w for i, w in enumerate(argv) if i not in dropped and i - 1 not in dropped]


@pytest.mark.parametrize("role", [0, 1])
def test_modes_differ_in_the_backend_only(role: int) -> None:
    specs = [pair(GROUND, mode, places(), Path("logs")).specs[role] for mode in ServeMode]
    for a, b in itertools.pairwise(specs):
        assert without_backend(a) == without_backend(b)
        assert a.environment == b.environment


def test_kv_takes_the_data_network_and_clients_the_other() -> None:
    servers = pair(GROUND, ServeMode.LAYERWISE, places(), Path("logs"))
    for number, spec in enumerate(servers.specs, start=1):
        environment = spec.full_environment({})
        assert environment["SGLANG_HOST_IP"] == f"10.77.1.{number}"
        assert environment["OMP_NUM_THREADS"] == "1"
        assert environment["MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"] == "65535"
        assert spec.url == f"http://10.77.0.{number}:30000"
        assert spec.argv()[:2] == ["in", str(number)]
    assert servers.client().bootstrap_host == "10.77.0.1"


def test_checksums_are_asked_of_our_modes_only() -> None:
    for mode in ServeMode:
        specs = pair(GROUND, mode, places(), Path("logs"), debug=True).specs
        asked = ["--smartgen-debug" in spec.argv() for spec in specs]
        assert asked == [mode is not ServeMode.STOCK] * 2


def test_an_aggregated_server_has_the_same_ground() -> None:
    (spec,) = aggregated(GROUND, local_place(), Path("logs")).specs
    assert spec.role is Role.AGGREGATED
    assert set(GROUND.options) <= set(spec.argv())


def test_two_servers_on_one_machine_have_their_own_ports() -> None:
    prefill, decode = local_places()
    assert len({prefill.port, decode.port, prefill.bootstrap_port}) == 3


def test_a_server_that_dies_at_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    spec = ServerSpec(
        role=Role.AGGREGATED,
        model=Path("/model"),
        port=local_place().port,
        prefix=("sh", "-c", "echo no such model; exit 3", "sh"),
    )
    with pytest.raises(ProcessDied) as caught, Servers(spec, logs=tmp_path):
        pass
    assert caught.value.exit_code == 3
    assert "no such model" in caught.value.tail
