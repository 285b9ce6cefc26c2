"""The measuring client against two small HTTP servers that behave as SGLang's do."""

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from smartgen.client import DualClient, RequestFailed, sum_by_label, timing
from smartgen.client.dual import server_sent

GAP_S = 0.05


@contextmanager
def serving(respond: Callable[[http.server.BaseHTTPRequestHandler, Any], None]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
            respond(self, body)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def reply(handler: http.server.BaseHTTPRequestHandler, status: int, body: object) -> None:
    handler.send_response(status)
    handler.end_headers()
    handler.wfile.write(json.dumps(body).encode())


def prefill(handler: http.server.BaseHTTPRequestHandler, body: Any) -> None:
    reply(handler, 200, {"text": "a", "meta_info": {"cached_tokens": 16}})


def event(tokens: int) -> bytes:
    info = {"completion_tokens": tokens, "prompt_tokens": 5}
    return f"data: {json.dumps({'text': 'abc'[:tokens], 'meta_info': info})}\n\n".encode()


def streaming(*pieces: bytes) -> Callable[[http.server.BaseHTTPRequestHandler, Any], None]:
    """Answers with these pieces, `GAP_S` apart."""

    def respond(handler: http.server.BaseHTTPRequestHandler, body: Any) -> None:
        assert body["stream"] is True
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for piece in (*pieces, b""):
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            handler.wfile.flush()
            time.sleep(GAP_S)

    return respond


@pytest.fixture
def client() -> Iterator[Callable[..., DualClient]]:
    with ExitStack() as stack:

        def make(prefill_side: Any, decode_side: Any) -> DualClient:
            return DualClient(
                prefill_url=stack.enter_context(serving(prefill_side)),
                decode_url=stack.enter_context(serving(decode_side)),
                bootstrap_host="10.0.0.1",
                bootstrap_port=8998,
                timeout_s=10,
            )

        yield make


def test_each_token_gets_the_time_of_the_event_that_brought_it(client):
    answer = client(prefill, streaming(event(1), event(3), b"data: [DONE]\n\n")).ask("hi")
    first, second, third = answer.token_times_s
    assert second == third
    assert second - first > 0.8 * GAP_S
    assert answer.text == "abc"
    assert (answer.prompt_tokens, answer.cached_tokens) == (5, 16)
    assert answer.timing.ttst_s == second
    assert answer.prefill_s > 0


def test_both_servers_get_the_same_room_and_bootstrap_address(client):
    bodies = []

    def keep_prefill(handler: Any, body: Any) -> None:
        bodies.append(body)
        prefill(handler, body)

    def keep_decode(handler: Any, body: Any) -> None:
        bodies.append(body)
        streaming(event(1))(handler, body)

    client(keep_prefill, keep_decode).ask([1, 2, 3], max_new_tokens=4, rid="x")
    first, second = ({k: v for k, v in body.items() if k != "stream"} for body in bodies)
    assert first == second
    assert first["input_ids"] == [1, 2, 3]
    assert first["bootstrap_host"] == "10.0.0.1"
    assert first["bootstrap_room"] > 0
    assert first["sampling_params"] == {"temperature": 0, "max_new_tokens": 4}
    assert first["rid"] == "x"


def test_an_error_event_is_an_error(client):
    broken = b'data: {"error": {"code": 503, "message": "page_size differs"}}\n\n'
    with pytest.raises(RequestFailed, match="decode answered 503: page_size differs"):
        client(prefill, streaming(event(1), broken)).ask("hi")


def test_prefills_reason_wins_over_its_consequence_at_decode(client):
    def refuse(handler: Any, body: Any) -> None:
        reply(handler, 400, {"error": {"message": "prompt too long"}})

    broken = b'data: {"error": {"code": 500, "message": "transfer failed"}}\n\n'
    with pytest.raises(RequestFailed, match="prefill answered 400: prompt too long"):
        client(refuse, streaming(broken)).ask("hi")


def test_a_refused_connection_is_an_error():
    nowhere = DualClient(
        prefill_url="http://127.0.0.1:9",
        decode_url="http://127.0.0.1:9",
        bootstrap_host="127.0.0.1",
        bootstrap_port=1,
    )
    with pytest.raises(RequestFailed, match="answered nothing"):
        nowhere.ask("hi")


def test_lines_split_anywhere_are_put_together():
    whole = b"data: one\n\ndata: two\r\n\n: comment\ndata: [DONE]\n\ndata: late\n"
    for size in (1, 2, 7, len(whole)):
        pieces = (whole[i : i + size] for i in range(0, len(whole), size))
        assert list(server_sent(pieces)) == ["one", "two"]


def test_timing_of_one_two_and_many_tokens():
    assert timing([1.0]).ttst_s is None
    assert timing([1.0, 3.0]).tpot_s is None
    many = timing([1.0, 3.0, 3.5, 4.0])
    assert (many.ttft_s, many.ttst_s, many.tpot_s, many.total_s) == (1.0, 3.0, 0.5, 4.0)
    with pytest.raises(ValueError, match="no token"):
        timing([])


def test_counters_are_added_up_per_path():
    text = (
        "# TYPE smartgen:sent_bytes counter\n"
        'smartgen:sent_bytes_total{path="layerwise",rank="0"} 5\n'
        'smartgen:sent_bytes_total{path="layerwise",rank="1"} 7\n'
        'smartgen:sent_bytes_total{path="aux",rank="0"} 1\n'
    )
    assert sum_by_label(text, "smartgen:sent_bytes_total", "path") == {"layerwise": 12, "aux": 1}
    assert sum_by_label("", "smartgen:sent_bytes_total", "path") is None
