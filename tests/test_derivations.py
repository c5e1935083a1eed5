"""Models without a reference implementation: every parameter, cache byte and FLOP derived by hand."""

from __future__ import annotations

from planner import plan

# Letters: D width, F hidden width, L layers, H heads, V vocabulary, S tokens.


def test_the_original_transformer_base() -> None:
    """Attention Is All You Need, table 3, base: D 512, F 2048, 6 + 6 layers, V 37,000 shared and tied."""
    d, f, layers, v, s, t = 512, 2048, 6, 37_000, 512, 128
    attention = 4 * d * d  # q, k, v and output, no biases
    mlp = 2 * d * f + f + d
    norm = 2 * d
    encoder = attention + mlp + 2 * norm
    decoder = 2 * attention + mlp + 3 * norm
    made = plan("transformer-base", source=s, prompt=t, generate=1)
    assert made.params["stacks"]["encoder"]["layers"] == [encoder] * layers
    assert made.params["stacks"]["decoder"]["layers"] == [decoder] * layers
    assert made.params["total"] == v * d + layers * (encoder + decoder) == 63_045_632
    # keys and values, 2 bytes: T + 1 rows of its own, S rows of the encoder's
    assert made.cache["layers"] == [2 * 2 * d * (t + 1 + s)] * layers
    encoder_flops = layers * (2 * s * (attention + 2 * d * f) + 2 * 2 * s * s * d)
    own, cross = 2 * 2 * t * t * d, 2 * 2 * t * s * d
    cross_products = 2 * (t * 2 * d * d + s * 2 * d * d)  # queries and output of T rows, keys and values of S rows
    decoder_flops = layers * (2 * t * (attention + 2 * d * f) + cross_products + own + cross)
    assert made.flops["prefill"]["dense"] == encoder_flops + decoder_flops + 2 * t * d * v
    step = layers * (2 * (attention + 2 * d * d + 2 * d * f) + 2 * 2 * (t + 1) * d + 2 * 2 * s * d)
    assert made.flops["decode"]["dense"] == step + 2 * d * v


def test_the_original_transformer_big() -> None:
    """Table 3, big: D 1024, F 4096; the paper rounds to 213 million."""
    d, f = 1024, 4096
    attention, mlp, norm = 4 * d * d, 2 * d * f + f + d, 2 * d
    assert (
        plan("transformer-big").params["total"] == 37_000 * d + 6 * (3 * attention + 2 * mlp + 5 * norm) == 214_171_648
    )


def test_gpt3() -> None:
    """GPT-3, table 2.1: GPT-2's block with D 12,288, L 96, H 96, 2,048 positions, V 50,257, biases everywhere."""
    d, layers, v, positions, s = 12_288, 96, 50_257, 2048, 512
    attention = 4 * d * d + 4 * d
    mlp = 8 * d * d + 5 * d
    norms = 2 * 2 * d
    made = plan("gpt3-175b", prompt=s, generate=1)
    assert made.params["stacks"]["decoder"]["layers"] == [attention + mlp + norms] * layers
    assert made.params["total"] == (v + positions) * d + layers * (attention + mlp + norms) + 2 * d == 174_604_259_328
    assert made.cache["bytes_per_token"] == 2 * 2 * d * layers == 4_718_592
    products = layers * 12 * d * d
    assert made.flops["prefill"]["dense"] == 2 * s * (products + d * v) + layers * 4 * s * s * d
    assert made.flops["prefill"]["total"] == 2 * s * products + 2 * d * v + layers * 4 * (s * (s + 1) // 2) * d
    assert made.flops["decode"]["dense"] == 2 * (products + d * v) + layers * 4 * (s + 1) * d


def test_palm() -> None:
    """PaLM, table 1: parallel block with one norm, one key-value head of 256, SwiGLU of 4 D, no biases, tied table."""
    for name, layers, d, heads in (
        ("palm-8b", 32, 4096, 16),
        ("palm-62b", 64, 8192, 32),
        ("palm-540b", 118, 18_432, 48),
    ):
        q, kv, s = heads * 256, 256, 512
        attention = d * q + 2 * d * kv + q * d
        layer = attention + 3 * d * 4 * d + d  # the norm scales and has no bias
        made = plan(name, prompt=s, generate=1)
        assert made.params["stacks"]["decoder"]["layers"] == [layer] * layers
        assert made.params["total"] == 256_000 * d + layers * layer + d
        assert made.cache["bytes_per_token"] == 2 * 2 * kv * layers
        dense = 2 * s * (layers * (layer - d) + 256_000 * d) + layers * 2 * s * s * 2 * q
        assert made.flops["prefill"]["dense"] == dense
