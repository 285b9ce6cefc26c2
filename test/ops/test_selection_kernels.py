"""Every selection kernel of every instruction set against the reference, and against itself."""

import math

import pytest
import smartgen_kernel as kernel
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from smartgen.ops import TOLERANCES, reference

LENGTHS = [1, 16, 17, 31, 32, 33, 113, 1000]


def lse2_of(batch):
    return batch.extend(reference.extend_attention)[1]


def check_mass(close, batch, *, block_size=32, **keywords):
    lse2 = lse2_of(batch)
    got = batch.block_mass(kernel.block_mass, lse2, block_size=block_size, **keywords)
    expected = batch.block_mass(reference.block_mass, lse2, block_size=block_size)
    close(got, expected, TOLERANCES["block_mass"][batch.q.dtype])


def check_folds(close, batch, *, block_size=32, sub_tokens=8, **keywords):
    """Returns digest and bounds as the kernel has them."""
    dtype = batch.q.dtype
    sub = {"block_size": block_size, "sub_tokens": sub_tokens}
    digest = batch.blocks(kernel.block_digest, **sub, **keywords)
    close(digest, batch.blocks(reference.block_digest, **sub), TOLERANCES["block_digest"][dtype])
    bounds = batch.blocks(kernel.block_bounds, block_size=block_size, **keywords)
    expected = batch.blocks(reference.block_bounds, block_size=block_size)
    close(bounds, expected, TOLERANCES["block_bounds"][dtype])
    return digest, bounds


def check_scores(lse2_close, batch, digest, bounds, *, block_size=32, **keywords):
    tolerance = TOLERANCES["block_scores"][batch.q.dtype]
    same = {"block_size": block_size, "scale": batch.scale}
    for function, plain, known in (
        (kernel.digest_scores, reference.digest_scores, digest),
        (kernel.bound_scores, reference.bound_scores, bounds),
    ):
        got = function(batch.q, known, int(batch.seq_lens), **same, **keywords)
        lse2_close(got, plain(batch.q, known, int(batch.seq_lens), **same), tolerance)


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths_and_windows(paged, close, lse2_close, isa, dtype, length):
    for window in {1, min(length, 20), min(length, 40)}:
        batch = paged([length], [length - window], dtype=dtype)
        check_mass(close, batch, isa=isa)
        digest, bounds = check_folds(close, batch, isa=isa)
        check_scores(lse2_close, batch, digest, bounds, isa=isa)


@pytest.mark.parametrize(
    ("page_size", "block_size", "sub_tokens"),
    [(1, 1, 1), (1, 24, 3), (16, 16, 16), (16, 48, 24), (16, 128, 8), (32, 64, 64), (5, 20, 4)],
)
def test_pages_blocks_and_sub_blocks(
    paged, close, lse2_close, isa, dtype, page_size, block_size, sub_tokens
):
    batch = paged([299], [280], page_size=page_size, dtype=dtype)
    check_mass(close, batch, block_size=block_size, isa=isa)
    digest, bounds = check_folds(
        close, batch, block_size=block_size, sub_tokens=sub_tokens, isa=isa
    )
    check_scores(lse2_close, batch, digest, bounds, block_size=block_size, isa=isa)


@pytest.mark.parametrize("head_size", [16, 48, 64, 80, 96, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 2), (5, 1), (14, 2), (8, 8)])
def test_head_sizes_and_groups(paged, close, lse2_close, isa, dtype, head_size, heads, kv_heads):
    batch = paged(
        [150], [133], heads=heads, kv_heads=kv_heads, head_size=head_size, dtype=dtype
    )  # fmt: skip
    check_mass(close, batch, isa=isa)
    digest, bounds = check_folds(close, batch, isa=isa)
    check_scores(lse2_close, batch, digest, bounds, isa=isa)


def test_queries_may_come_in_any_order_and_lie_before_or_past_the_tokens(paged, close, isa, dtype):
    batch = paged([200], dtype=dtype)
    chosen = torch.tensor([150, 3, 199, 0, 77, 64])
    lse2 = lse2_of(batch)[chosen]
    for length, positions in ((200, chosen), (100, chosen), (100, chosen - 60)):
        arguments = (batch.q[chosen], lse2, positions, batch.k_cache, batch.slots, length)
        keywords = {"block_size": 32, "page_size": 16, "scale": batch.scale}
        got = kernel.block_mass(*arguments, **keywords, isa=isa)
        expected = reference.block_mass(*arguments, **keywords)
        close(got, expected, TOLERANCES["block_mass"][dtype])
        unseen = torch.arange(got.shape[2]) * 32 > positions[:, None]
        assert (got.movedim(1, 2)[unseen] == 0).all()


def test_nothing_to_do(paged, isa, dtype):
    batch = paged([40], [30], dtype=dtype)
    pages = {"block_size": 32, "page_size": 16, "isa": isa}
    none = batch.q[:0]
    positions = torch.arange(30, 40)
    lse2 = lse2_of(batch)
    mass = kernel.block_mass(
        none, lse2[:0], positions[:0], batch.k_cache, batch.slots, 40, **pages, scale=0.125
    )
    assert mass.shape == (0, 9, 2)
    mass = kernel.block_mass(
        batch.q, lse2, positions, batch.k_cache, batch.slots, 0, **pages, scale=0.125
    )
    assert mass.shape == (10, 9, 0)
    digest = kernel.block_digest(batch.k_cache, batch.slots, 0, **pages, sub_tokens=8)
    bounds = kernel.block_bounds(batch.k_cache, batch.slots, 0, **pages)
    assert (digest.shape, bounds.shape) == ((0, 4, 3, 64), (0, 2, 3, 64))
    scored = {"block_size": 32, "scale": 0.125, "isa": isa}
    assert kernel.digest_scores(batch.q, digest, 0, **scored).shape == (10, 9, 0)
    assert kernel.bound_scores(none, bounds, 0, **scored).shape == (0, 9, 0)


def test_only_the_first_entry_of_a_page_is_read(paged, isa, dtype):
    batch = paged([100], [90], dtype=dtype)
    lse2 = lse2_of(batch)
    before = [
        batch.block_mass(kernel.block_mass, lse2, block_size=32, isa=isa),
        *check_folds(lambda *_: None, batch, isa=isa),
    ]
    batch.slots[torch.arange(batch.slots.shape[0]) % 16 != 0] = -7
    batch.slots[112:] = 2**30
    after = [
        batch.block_mass(kernel.block_mass, lse2, block_size=32, isa=isa),
        batch.blocks(kernel.block_digest, block_size=32, sub_tokens=8, isa=isa),
        batch.blocks(kernel.block_bounds, block_size=32, isa=isa),
    ]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_key_that_is_not_finite_spoils_its_own_block_only(paged, isa, dtype, value):
    batch = paged([150], [110], dtype=dtype)
    lse2 = lse2_of(batch)
    same = {"block_size": 32, "isa": isa}

    def results():
        digest = batch.blocks(kernel.block_digest, sub_tokens=8, **same)
        bounds = batch.blocks(kernel.block_bounds, **same)
        return {
            "mass": batch.block_mass(kernel.block_mass, lse2, **same).movedim(2, 0),
            "digest": digest,
            "bounds": bounds,
            "scores": kernel.digest_scores(batch.q, digest, 150, scale=batch.scale, **same).movedim(
                2, 0
            ),
            "bound scores": kernel.bound_scores(
                batch.q, bounds, 150, scale=batch.scale, **same
            ).movedim(2, 0),
        }

    before = results()
    bad = 115  # in block 3, seen by some of the queries, which start at 110
    batch.k_cache[batch.slots[bad].long(), 1, 5] = value
    after = results()
    others = torch.arange(5) != 3
    for name, found in after.items():
        assert torch.equal(found[others], before[name][others]), name
        assert not torch.equal(found[3], before[name][3]), name
    mass = after["mass"][3]
    assert torch.equal(mass[: bad - 110], before["mass"][3][: bad - 110])
    assert torch.equal(mass[:, :3], before["mass"][3][:, :3])
    if math.isnan(value):
        assert mass[bad - 110 :, 3:6].isnan().all()
        assert after["digest"][3, (bad - 96) // 8, 1, 5].isnan()
        assert after["bounds"][3, :, 1, 5].isnan().all()
        assert after["scores"][3, :, 3:6].isnan().all()
        assert after["bound scores"][3, :, 3:6].isnan().all()


def test_what_an_empty_sub_block_holds_does_not_matter(paged, lse2_close, isa, dtype):
    batch = paged([70], [65], dtype=dtype)
    digest = batch.blocks(kernel.block_digest, block_size=32, sub_tokens=8)
    digest = torch.cat((digest, torch.full_like(digest, math.nan)))  # blocks 3..5 have no tokens
    digest[2, 1:] = math.inf  # tokens 72..95
    bounds = torch.full((6, 2, 3, 64), math.nan, dtype=dtype)
    bounds[:3] = batch.blocks(kernel.block_bounds, block_size=32)
    check_scores(lse2_close, batch, digest, bounds, isa=isa)
    scores = kernel.digest_scores(batch.q, digest, 70, block_size=32, scale=0.125, isa=isa)
    assert scores[..., :3].isfinite().all()
    assert (scores[..., 3:] == -math.inf).all()


def test_large_logits_do_not_overflow_scores(paged, isa):
    batch = paged([200], [190], dtype=torch.float32)
    digest = batch.blocks(kernel.block_digest, block_size=32, sub_tokens=4)
    got = kernel.digest_scores(batch.q, digest, 200, block_size=32, scale=40.0, isa=isa)
    expected = reference.digest_scores(batch.q, digest, 200, block_size=32, scale=40.0)
    assert expected.abs().max() > 1000
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-3)


def test_threads_and_other_queries_do_not_change_bits(paged, isa, dtype):
    batch = paged([700], [640], dtype=dtype)
    lse2, same = lse2_of(batch), {"block_size": 32, "isa": isa}

    def results(threads):
        digest = batch.blocks(kernel.block_digest, sub_tokens=8, num_threads=threads, **same)
        bounds = batch.blocks(kernel.block_bounds, num_threads=threads, **same)
        scored = {"scale": batch.scale, "num_threads": threads, **same}
        return (
            batch.block_mass(kernel.block_mass, lse2, num_threads=threads, **same),
            digest,
            bounds,
            kernel.digest_scores(batch.q, digest, 700, **scored),
            kernel.bound_scores(batch.q, bounds, 700, **scored),
        )

    one = results(1)
    assert all(torch.equal(a, b) for a, b in zip(one, results(2), strict=True))
    alone = kernel.block_mass(
        batch.q[7:8], lse2[7:8], torch.tensor([647]), batch.k_cache, batch.slots, 700, page_size=16, scale=batch.scale,
        **same,
    )  # fmt: skip
    assert torch.equal(alone[0], one[0][7])
    alone = kernel.digest_scores(batch.q[7:8], one[1], 700, scale=batch.scale, **same)
    assert torch.equal(alone[0], one[3][7])


def test_partial_attention_over_all_pages_in_order_gives_the_bits_of_decode(paged, isa, dtype):
    batch = paged([300, 17, 64, 1], [299, 16, 63, 0], dtype=dtype)
    out, lse2 = batch.decode(kernel.decode_attention, isa=isa)
    counts = -(-batch.seq_lens // 16)
    pages = torch.full((4, 24), -1, dtype=torch.int32)
    for i, row in enumerate(batch.rows.tolist()):
        pages[i, : counts[i]] = batch.req_to_token[row, : 16 * counts[i] : 16]
    got, got_lse2 = kernel.partial_attention(
        batch.q, batch.k_cache, batch.v_cache, pages, counts, batch.seq_lens, page_size=16, scale=batch.scale, isa=isa
    )  # fmt: skip
    assert torch.equal(got, out)
    assert torch.equal(got_lse2, lse2)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lengths=st.lists(st.integers(0, 150), min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (9, 3), (5, 1), (8, 2)]),
    head_size=st.sampled_from([16, 64, 80]),
    page_size=st.sampled_from([1, 7, 16]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    isa=st.sampled_from(kernel.available_isas()),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_partial_attention_over_any_pages(
    paged, close, lse2_close, lengths, heads, head_size, page_size, dtype, isa, threads, seed
):
    batch = paged(
        [160], [160 - len(lengths)], heads=heads[0], kv_heads=heads[1], head_size=head_size, page_size=page_size,
        dtype=dtype, seed=seed,
    )  # fmt: skip
    full = batch.slots[: 160 // page_size * page_size : page_size]
    counts = torch.tensor([-(-length // page_size) for length in lengths])
    pages = torch.full((len(lengths), int(counts.max()) + 1), 2**30, dtype=torch.int32)
    generator = torch.Generator().manual_seed(seed)
    for i, count in enumerate(counts.tolist()):
        pages[i, :count] = full[torch.randint(len(full), (count,), generator=generator)]
    arguments = (batch.q, batch.k_cache, batch.v_cache, pages, counts, torch.tensor(lengths))
    keywords = {"page_size": page_size, "scale": batch.scale}
    out, lse2 = kernel.partial_attention(*arguments, **keywords, isa=isa, num_threads=threads)
    expected, expected_lse2 = reference.partial_attention(*arguments, **keywords)
    close(out, expected, TOLERANCES["attention"][dtype])
    lse2_close(lse2, expected_lse2, TOLERANCES["attention"][dtype])
    for i, length in enumerate(lengths):
        assert bool((lse2[i] == -math.inf).all()) is (length == 0)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    length=st.integers(1, 200),
    window=st.integers(1, 50),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 9),
    head_size=st.sampled_from([16, 32, 64, 80, 112, 128]),
    page_size=st.sampled_from([1, 2, 7, 16]),
    pages_per_block=st.integers(1, 5),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    isa=st.sampled_from(kernel.available_isas()),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_any_shape(
    paged, close, lse2_close, length, window, kv_heads, group, head_size, page_size, pages_per_block, dtype, isa,
    threads, seed,
):  # fmt: skip
    batch = paged(
        [length], [max(0, length - window)], heads=kv_heads * group, kv_heads=kv_heads, head_size=head_size,
        page_size=page_size, dtype=dtype, seed=seed,
    )  # fmt: skip
    block_size = page_size * pages_per_block
    same = {"block_size": block_size, "isa": isa, "num_threads": threads}
    check_mass(close, batch, **same)
    digest, bounds = check_folds(close, batch, sub_tokens=pages_per_block, **same)
    check_scores(lse2_close, batch, digest, bounds, **same)
