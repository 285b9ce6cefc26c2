"""The reference operators of selection against naive loops: what they mean, spelled out key by key."""

import math

import pytest
import torch
from smartgen.ops import TOLERANCES, reference

BLOCK, PAGE, LENGTH, WINDOW = 8, 4, 29, 6


@pytest.fixture(name="request_")
def _request(paged):
    return paged(
        [LENGTH],
        [LENGTH - WINDOW],
        heads=4,
        kv_heads=2,
        head_size=16,
        page_size=PAGE,
        dtype=torch.float32,
    )


def keys_of(batch):
    """Keys of the one request in order [tokens, kv_heads, size], by every entry of the table."""
    return batch.k_cache[batch.slots[:LENGTH].long()]


def parts(size):
    return [range(begin, min(begin + size, LENGTH)) for begin in range(0, LENGTH, size)]


def logit2(q, key, scale):
    return float(q.double() @ key.double()) * scale * math.log2(math.e)


def test_block_mass_adds_the_softmax_up_key_by_key(request_):
    batch = request_
    _, lse2 = batch.extend(reference.extend_attention)
    keys = keys_of(batch)
    mass = batch.block_mass(reference.block_mass, lse2, block_size=BLOCK)
    assert mass.shape == (WINDOW, 4, 4)
    for query, position in enumerate(range(LENGTH - WINDOW, LENGTH)):
        for head in range(4):
            logits = [logit2(batch.q[query, head], key[head // 2], batch.scale) for key in keys]
            total = sum(2**logit for logit in logits[: position + 1])
            for block, tokens in enumerate(parts(BLOCK)):
                share = sum(2 ** logits[t] for t in tokens if t <= position) / total
                assert mass[query, head, block].item() == pytest.approx(share, rel=1e-5, abs=1e-7)
    torch.testing.assert_close(mass.sum(-1), torch.ones(WINDOW, 4))


def test_digest_and_bounds_are_means_and_extremes_of_the_tokens_there_are(request_):
    batch = request_
    keys = keys_of(batch)
    digest = batch.blocks(reference.block_digest, block_size=BLOCK, sub_tokens=2)
    bounds = batch.blocks(reference.block_bounds, block_size=BLOCK)
    assert digest.shape == (4, 4, 2, 16)
    assert bounds.shape == (4, 2, 2, 16)
    for sub, tokens in enumerate(parts(2)):
        mean = sum(keys[t] for t in tokens) / len(tokens)
        torch.testing.assert_close(digest[sub // 4, sub % 4], mean)
    assert (digest[3, 3] == 0).all()
    for block, tokens in enumerate(parts(BLOCK)):
        for head in range(2):
            for d in range(16):
                values = [keys[t, head, d].item() for t in tokens]
                assert bounds[block, :, head, d].tolist() == [min(values), max(values)]


def test_scores_add_up_sub_blocks_and_never_exceed_the_bound(request_):
    batch = request_
    digest = batch.blocks(reference.block_digest, block_size=BLOCK, sub_tokens=2)
    bounds = batch.blocks(reference.block_bounds, block_size=BLOCK)
    keywords = {"block_size": BLOCK, "scale": batch.scale}
    scores = reference.digest_scores(batch.q, digest, LENGTH, **keywords)
    upper = reference.bound_scores(batch.q, bounds, LENGTH, **keywords)
    assert scores.shape == upper.shape == (WINDOW, 4, 4)
    for query in range(WINDOW):
        for head in range(4):
            for block, tokens in enumerate(parts(BLOCK)):
                q = batch.q[query, head]
                weight = sum(
                    len(range(begin, min(begin + 2, tokens.stop)))
                    * 2 ** logit2(q, digest[block, sub, head // 2], batch.scale)
                    for sub, begin in enumerate(range(tokens.start, tokens.stop, 2))
                )
                assert scores[query, head, block].item() == pytest.approx(
                    math.log2(weight), abs=1e-5
                )
                low, high = bounds[block, :, head // 2]
                top = sum(max(x * a, x * b) for x, a, b in zip(q, low, high, strict=True)).item()
                expected = top * batch.scale * math.log2(math.e) + math.log2(len(tokens))
                assert upper[query, head, block].item() == pytest.approx(expected, abs=1e-4)
    assert (scores <= upper + 1e-5).all()


def test_a_digest_of_single_tokens_estimates_the_mass_exactly(request_):
    batch = request_
    _, lse2 = batch.extend(reference.extend_attention)
    digest = batch.blocks(reference.block_digest, block_size=BLOCK, sub_tokens=1)
    scores = reference.digest_scores(
        batch.q[-1:], digest, LENGTH, block_size=BLOCK, scale=batch.scale
    )
    mass = batch.block_mass(reference.block_mass, lse2, block_size=BLOCK)[-1:]
    torch.testing.assert_close(torch.exp2(scores - lse2[-1:, :, None]), mass, rtol=1e-5, atol=1e-7)


def test_quantised_digests_come_back_within_half_a_step(dtype):
    digest = (torch.randn(5, 4, 3, 32) * torch.logspace(-4, 2, 4)[:, None, None]).to(dtype)
    digest[1, 2, 0] = 0
    values, scales = reference.quantize_digest(digest)
    assert (values.dtype, scales.dtype) == (torch.int8, torch.float32)
    assert scales.shape == (5, 4, 3)
    back = reference.dequantize_digest(values, scales, torch.float32)
    assert ((back - digest.float()).abs() <= scales[..., None] * 0.5001).all()
    assert reference.dequantize_digest(values, scales, dtype).dtype == dtype
    assert (back[1, 2, 0] == 0).all()
    again = reference.quantize_digest(back)
    assert torch.equal(again[0], values)


def test_a_key_that_is_not_finite_spoils_one_vector_of_a_quantised_digest():
    digest = torch.randn(5, 4, 3, 32)
    plain = reference.dequantize_digest(*reference.quantize_digest(digest), torch.float32)
    for value in (math.nan, math.inf):
        digest[2, 1, 0, 7] = value
        back = reference.dequantize_digest(*reference.quantize_digest(digest), torch.float32)
        assert not back[2, 1, 0].isfinite().any()
        back[2, 1, 0] = plain[2, 1, 0]
        assert torch.equal(back, plain)


def test_partial_attention_over_shuffled_parts_merges_to_the_whole(paged, close, lse2_close, dtype):
    batch = paged([113], [112], dtype=dtype)
    expected, expected_lse2 = batch.decode(reference.decode_attention)
    pages = batch.slots[:113:16]
    lists = pages[[5, 2, 0]], pages[[6, 1, 3, 4, 7]]  # page 7 has one token and comes last
    (out_a, lse2_a), (out_b, lse2_b) = (
        reference.partial_attention(
            batch.q, batch.k_cache, batch.v_cache, listed[None], torch.tensor([len(listed)]), torch.tensor([length]),
            page_size=16, scale=batch.scale,
        )
        for listed, length in zip(lists, (48, 65), strict=True)
    )  # fmt: skip
    out, lse2 = reference.merge(out_a, lse2_a, out_b, lse2_b)
    close(out, expected, TOLERANCES["attention"][dtype])
    lse2_close(lse2, expected_lse2, TOLERANCES["attention"][dtype])
