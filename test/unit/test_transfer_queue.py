from hypothesis import given
from hypothesis import strategies as st
from smartgen.core import Path, RequestKey, Run
from smartgen.transfer import LinkQueue, Span

A, B, C = RequestKey(1, 0), RequestKey(2, 0), RequestKey(3, 0)


def span(path=Path.LAYERWISE, layer=0, start=0, stop=4, page_bytes=100):
    return Span(path, layer, Run(start, stop), page_bytes)


def take(queue, max_bytes=10_000, max_pages=1000):
    return queue.pop(max_bytes=max_bytes, max_pages=max_pages)


def test_an_empty_queue_gives_nothing():
    assert take(LinkQueue()) is None


def test_urgent_paths_go_first():
    queue = LinkQueue()
    for path in Path:
        queue.push(A, [span(path)])
    order = [take(queue).span.path for _ in Path]
    assert order == sorted(Path, key=lambda path: path.rank)


def test_requests_of_a_path_take_turns_and_each_is_first_in_first_out():
    queue = LinkQueue()
    queue.push(A, [span(layer=layer) for layer in range(3)])
    queue.push(B, [span(layer=layer) for layer in range(2)])
    order = [(turn.key, turn.span.layer) for turn in iter(lambda: take(queue), None)]
    assert order == [(A, 0), (B, 0), (A, 1), (B, 1), (A, 2)]


def test_large_spans_are_cut_at_pages_and_the_rest_waits_for_its_turn():
    queue = LinkQueue()
    queue.push(A, [span(stop=5)])
    queue.push(B, [span(stop=1)])
    got = [take(queue, max_bytes=250) for _ in range(4)]
    assert [(turn.key, turn.span.run) for turn in got] == [
        (A, Run(0, 2)),
        (B, Run(0, 1)),
        (A, Run(2, 4)),
        (A, Run(4, 5)),
    ]


def test_a_page_larger_than_the_limit_goes_alone():
    queue = LinkQueue()
    queue.push(A, [span(stop=2)])
    assert take(queue, max_bytes=10).span.run == Run(0, 1)


def test_pages_are_limited_too():
    queue = LinkQueue()
    queue.push(A, [span(stop=9)])
    assert take(queue, max_pages=4).span.run == Run(0, 4)


def test_dropping_a_request_leaves_the_others():
    queue = LinkQueue()
    queue.push(A, [span(), span(Path.ONDEMAND)])
    queue.push(B, [span()])
    assert queue.drop(A) == 800
    assert queue.drop(A) == 0
    assert take(queue).key == B
    assert len(queue) == queue.nbytes == 0


@given(st.data())
def test_nothing_is_lost_or_doubled_and_no_request_waits_over_two_rounds(data):
    queue, pushed, taken = LinkQueue(), {}, {}
    waiting = dict.fromkeys((A, B, C), 0)
    for _ in range(data.draw(st.integers(0, 40))):
        if data.draw(st.booleans()):
            key = data.draw(st.sampled_from((A, B, C)))
            start = pushed.get(key, 0)
            stop = start + data.draw(st.integers(1, 6))
            queue.push(key, [span(start=start, stop=stop)])
            pushed[key] = stop
        else:
            turn = take(queue, max_bytes=data.draw(st.integers(1, 500)))
            if turn is None:
                continue
            assert turn.span.run.start == taken.get(turn.key, 0)
            taken[turn.key] = turn.span.run.stop
            for key in waiting:
                behind = key != turn.key and pushed.get(key, 0) > taken.get(key, 0)
                waiting[key] = waiting[key] + 1 if behind else 0
                assert waiting[key] <= 2
        queue.check()
    while (turn := take(queue)) is not None:
        taken[turn.key] = turn.span.run.stop
    assert taken == pushed


def test_thousands_of_spans_cost_no_re_sort():
    queue = LinkQueue()
    for room in range(200):
        queue.push(RequestKey(room, 0), [span(layer=layer) for layer in range(50)])
    assert sum(1 for _ in iter(lambda: take(queue), None)) == 10_000
