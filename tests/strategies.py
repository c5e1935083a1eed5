"""Random small configs of every topology, for laws that hold for all of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SIZES = st.integers(1, 8)


@st.composite
def llamas(draw: st.DrawFn, **fixed: Any) -> dict[str, Any]:
    """Return a small Llama config; `fixed` values win."""
    heads, groups, width = draw(SIZES), draw(SIZES), draw(SIZES)
    config = {
        "model_type": "llama",
        "hidden_size": 2 * heads * groups * width,
        "num_attention_heads": heads * groups,
        "num_key_value_heads": groups,
        "num_hidden_layers": draw(SIZES),
        "intermediate_size": draw(st.integers(1, 64)),
        "vocab_size": draw(st.integers(1, 100)),
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "tie_word_embeddings": draw(st.booleans()),
        "torch_dtype": "bfloat16",
    }
    return config | fixed


@st.composite
def mixtrals(draw: st.DrawFn) -> dict[str, Any]:
    """Return a small Mixtral config."""
    experts = draw(SIZES)
    moe = {"model_type": "mixtral", "num_local_experts": experts, "num_experts_per_tok": draw(st.integers(1, experts))}
    return draw(llamas(**moe))


@st.composite
def t5s(draw: st.DrawFn) -> dict[str, Any]:
    """Return a small T5 config."""
    return {
        "model_type": "t5",
        "d_model": draw(st.integers(1, 32)),
        "d_kv": draw(SIZES),
        "num_heads": draw(SIZES),
        "d_ff": draw(st.integers(1, 64)),
        "num_layers": draw(SIZES),
        "num_decoder_layers": draw(SIZES),
        "vocab_size": draw(st.integers(1, 100)),
        "feed_forward_proj": draw(st.sampled_from(["relu", "gated-gelu"])),
        "tie_word_embeddings": draw(st.booleans()),
    }


any_config = st.one_of(llamas(), mixtrals(), t5s())
