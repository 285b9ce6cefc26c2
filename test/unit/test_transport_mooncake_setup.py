"""What can be checked of the Mooncake transport without its engine."""

import importlib.metadata
import threading
import time

import pytest
from smartgen.transport import ErrorKind, TransportError, check_version, detect_protocol
from smartgen.transport import mooncake as module


class FakeEngine:
    """Counts what is asked; a status is final once, and polling further would be a crash."""

    def __init__(self):
        self.next_id = 1000
        self.status = {}
        self.dead = set()
        self.refuse = False
        self.registered = []
        self.probe_answer = 0
        self.probes = threading.Semaphore(1000)

    def get_rpc_port(self):
        return 1234

    def send_probe(self, session):
        assert self.probes.acquire(timeout=10)
        return self.probe_answer

    def register_memory(self, addr, nbytes):
        if (addr, nbytes) in self.registered:
            return -7
        self.registered.append((addr, nbytes))
        return 0

    def transfer_submit_write(self, session, src, dst, nbytes):
        if self.refuse:
            return 0
        self.next_id += 1
        self.status[self.next_id] = 0
        return self.next_id

    def transfer_check_status(self, engine_id):
        assert engine_id not in (0, -1), "this kills the process"
        assert engine_id not in self.dead, "this kills the process"
        status = self.status[engine_id]
        if status:
            self.dead.add(engine_id)
        return status


@pytest.fixture
def engine(monkeypatch):
    fake = FakeEngine()
    monkeypatch.setattr(module, "_build", lambda *_: fake)
    monkeypatch.setattr(module, "check_version", lambda: "0.3.13")
    return fake


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def fresh(engine, clock):
    """No peer is known yet."""
    return module.MooncakeTransport(host="10.0.0.1", protocol="tcp", clock=clock)


@pytest.fixture
def transport(fresh):
    """Both peers have answered."""
    fresh._known |= {"peer:0", "peer:1", "peer:2"}
    return fresh


def poll_until(transport, condition):
    done = []
    until = time.monotonic() + 10
    while not condition(done):
        assert time.monotonic() < until
        done += transport.poll()
        time.sleep(0.001)
    return done


def test_writes_to_a_new_peer_wait_for_its_answer(fresh, engine):
    engine.probes = threading.Semaphore(0)
    ids = [fresh.submit("peer:1", 1, 2, 3) for _ in range(3)]
    assert fresh.poll() == []
    assert engine.status == {}
    engine.probes.release()
    poll_until(fresh, lambda _: len(engine.status) == 3)
    engine.status = dict.fromkeys(engine.status, 1)
    assert [done.write_id for done in poll_until(fresh, len)] == ids


def test_a_peer_that_refuses_the_probe_fails_its_writes(fresh, engine):
    engine.probe_answer = -1
    write_id = fresh.submit("peer:1", 1, 2, 3)
    (done,) = poll_until(fresh, len)
    assert (done.write_id, done.ok) == (write_id, False)
    assert "does not answer" in done.reason


def test_a_peer_that_never_answers_fails_in_time_and_holds_nobody_up(fresh, engine, clock):
    engine.probes = threading.Semaphore(0)
    fresh.submit("peer:1", 1, 2, 3)
    fresh._known.add("peer:2")
    fresh.submit("peer:2", 1, 2, 3)
    assert len(engine.status) == 1
    clock.now = module.CONTACT_TIMEOUT_S
    (done,) = fresh.poll()
    assert not done.ok
    with pytest.raises(TransportError, match="does not answer"):
        fresh.submit("peer:1", 1, 2, 3)
    engine.probes.release()
    contact = fresh._contacts["peer:1"]
    poll_until(fresh, lambda _: contact.answer is not None)
    engine.probes.release()
    fresh.submit("peer:1", 1, 2, 3)
    poll_until(fresh, lambda _: len(engine.status) == 2)


def test_after_a_failed_write_the_peer_is_probed_again(transport, engine):
    transport.submit("peer:1", 1, 2, 3)
    engine.status[1001] = -1
    transport.poll()
    engine.probes = threading.Semaphore(0)
    transport.submit("peer:1", 1, 2, 3)
    assert len(engine.status) == 1
    engine.probes.release()


def test_the_session_is_host_and_port(transport):
    assert transport.session == "10.0.0.1:1234"


@pytest.mark.parametrize(("status", "ok"), [(1, True), (-1, False), (-2, False)])
def test_a_final_status_is_reported_once_and_never_polled_again(transport, engine, status, ok):
    write_id = transport.submit("peer:1", 1, 2, 3)
    assert transport.poll() == []
    engine.status[1001] = status
    (done,) = transport.poll()
    assert (done.write_id, done.ok, bool(done.reason)) == (write_id, ok, not ok)
    assert transport.poll() == []


def test_id_zero_is_an_error_and_never_polled(transport, engine):
    engine.refuse = True
    with pytest.raises(TransportError) as caught:
        transport.submit("peer:1", 1, 2, 3)
    assert caught.value.kind is ErrorKind.UNREACHABLE
    assert caught.value.peer == "peer:1"
    assert transport.poll() == []


def test_outstanding_writes_are_capped_per_peer(transport, engine):
    for _ in range(module.MAX_OUTSTANDING):
        transport.submit("peer:1", 1, 2, 3)
    with pytest.raises(TransportError, match="rejected"):
        transport.submit("peer:1", 1, 2, 3)
    transport.submit("peer:2", 1, 2, 3)


def test_all_of_many_writes_are_reported(transport, engine):
    ids = {transport.submit(f"peer:{i % 2}", 1, 2, 3) for i in range(500)}
    engine.status = dict.fromkeys(engine.status, 1)
    assert sorted(done.write_id for done in transport.poll()) == sorted(ids)


def test_a_few_running_writes_do_not_hide_what_ended_behind_them(transport, engine):
    ids = [transport.submit("peer:1", 1, 2, 3) for _ in range(100)]
    for engine_id in list(engine.status)[4:]:
        engine.status[engine_id] = 1
    assert [done.write_id for done in transport.poll()] == ids[4:]


def test_registering_twice_is_harmless_and_failing_is_told(transport, engine):
    transport.register(1, 2)
    transport.register(1, 2)
    assert engine.registered == [(1, 2)]
    engine.registered.append((3, 4))
    with pytest.raises(TransportError, match="status -7"):
        transport.register(3, 4)


def test_closed_means_closed(transport):
    transport.submit("peer:1", 1, 2, 3)
    transport.close()
    assert transport.poll() == []
    with pytest.raises(TransportError, match="closed"):
        transport.submit("peer:1", 1, 2, 3)


@pytest.mark.parametrize("wrong", [{"protocol": "udp"}, {"lanes": 0}, {"lanes": 17}])
def test_wrong_settings_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        module.MooncakeTransport(**{"host": "h", "protocol": "tcp", **wrong})


def test_rdma_needs_a_device(tmp_path):
    assert detect_protocol(tmp_path / "absent") == "tcp"
    assert detect_protocol(tmp_path) == "tcp"
    (tmp_path / "mlx5_0").mkdir()
    assert detect_protocol(tmp_path) == "rdma"


def versions(monkeypatch, installed):
    def version(name):
        if name in installed:
            return installed[name]
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


@pytest.mark.parametrize("package", module.PACKAGES)
@pytest.mark.parametrize("version", ["0.3.13", "0.3.13.post1"])
def test_known_versions_pass_under_any_name(monkeypatch, package, version):
    versions(monkeypatch, {package: version})
    assert check_version() == version


@pytest.mark.parametrize("version", ["0.3.12", "0.3.130", "0.4.0"])
def test_other_versions_are_refused_with_the_command(monkeypatch, version):
    versions(monkeypatch, {"mooncake-transfer-engine": version})
    with pytest.raises(TransportError, match=r"pip install 'mooncake-transfer-engine==0\.3\.13"):
        check_version()


def test_no_engine_is_told_how_to_get_one(monkeypatch):
    versions(monkeypatch, {})
    with pytest.raises(TransportError, match="not installed; run: pip install"):
        check_version()


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("libibverbs.so.1: cannot open shared object file", "apt-get install -y libibverbs1"),
        ("libnuma.so.1: cannot open shared object file", "libnuma1 libcurl4"),
        ("libcuda.so.1: cannot open shared object file", "pip install"),
        ("something else", "something else"),
    ],
)
def test_import_errors_name_the_package_to_install(text, remedy):
    error = module.import_failure(ImportError(text))
    assert error.kind is ErrorKind.LIBRARY
    assert remedy in str(error)
