import pytest
from hypothesis import given
from hypothesis import strategies as st
from smartgen.core import Run
from smartgen.residency import BlockTable, Residency, ResidencyError

LAYERS, PAGES = 3, 7
MOVES = {
    "queue": (Residency.ABSENT, Residency.QUEUED),
    "launch": (Residency.QUEUED, Residency.IN_FLIGHT),
    "settle": (Residency.IN_FLIGHT, Residency.RESIDENT),
    "requeue": (Residency.IN_FLIGHT, Residency.QUEUED),
    "land": (Residency.ABSENT, Residency.RESIDENT),
}

steps = st.lists(
    st.tuples(
        st.sampled_from(sorted(MOVES)),
        st.integers(-1, LAYERS),
        st.integers(-1, PAGES),
        st.integers(-1, PAGES + 1),
    ),
    max_size=60,
)


@given(steps)
def test_the_table_does_what_a_dict_does(moves):
    table = BlockTable(layers=LAYERS, pages=PAGES)
    model = {(la, p): Residency.ABSENT for la in range(LAYERS) for p in range(PAGES)}
    for name, layer, start, stop in moves:
        old, new = MOVES[name]
        cells = [(layer, p) for p in range(start, stop)]
        inside = 0 <= layer < LAYERS and 0 <= start <= stop <= PAGES
        if inside and all(model[cell] is old for cell in cells):
            getattr(table, name)(layer, Run(start, stop))
            model.update(dict.fromkeys(cells, new))
        else:
            with pytest.raises(ResidencyError):
                getattr(table, name)(layer, Run(start, stop))
        table.check()
        for state in Residency:
            assert table.count(state) == sum(value is state for value in model.values())
    for (layer, page), state in model.items():
        assert table.state(layer, page) is state
    for layer in range(LAYERS):
        missing = {p for run in table.missing_runs(layer) for p in range(*run)}
        assert missing == {p for p in range(PAGES) if model[layer, p] is not Residency.RESIDENT}
    assert table.complete == all(value is Residency.RESIDENT for value in model.values())


def test_a_refusal_names_the_page_and_both_states():
    table = BlockTable(layers=1, pages=4)
    table.queue(0, Run(0, 2))
    with pytest.raises(
        ResidencyError, match="page 2 is ABSENT, must be QUEUED to become IN_FLIGHT"
    ):
        table.launch(0, Run(1, 3))
    assert table.state(0, 1) is Residency.QUEUED


def test_runs_of_a_state_within_a_range():
    table = BlockTable(layers=1, pages=6)
    table.queue(0, Run(1, 3))
    table.queue(0, Run(4, 6))
    assert table.runs(0, Residency.QUEUED, within=Run(2, 5)) == (Run(2, 3), Run(4, 5))
    assert table.runs(0, Residency.ABSENT) == (Run(0, 1), Run(3, 4))


def test_no_pages_means_complete():
    assert BlockTable(layers=2, pages=0).complete
