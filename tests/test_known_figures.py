"""Figures that people know, and what the seed documents get wrong."""

from __future__ import annotations

import pytest

from planner import plan

SNIPPET = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
}


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("llama3-8b", 8_030_261_248),
        ("llama2-7b", 6_738_415_616),
        ("mixtral-8x7b", 46_702_792_704),
        ("gpt2", 124_439_808),
        ("deepseek-v3", 671_026_404_352),
        ("flan-t5-xxl", 11_135_332_352),
    ],
)
def test_total_parameters(name: str, total: int) -> None:
    """As published by their authors, to the last parameter."""
    assert plan(name).params["total"] == total


def test_mixtral_works_with_13_billion_on_a_token() -> None:
    """2 of 8 experts: 12,879,925,248, embeddings included."""
    assert plan("mixtral-8x7b").params["active"] == 12_879_925_248


def test_deepseek_v3_caches_one_latent_a_layer() -> None:
    """61 layers x (512 + 64) elements x 2 bytes a token."""
    assert plan("deepseek-v3", dtype="bf16").cache["bytes_per_token"] == 61 * 576 * 2


def test_multi_token_prediction_is_counted_when_asked_for() -> None:
    """One more layer of experts, two norms, a projection from 2 D to D and the norm before the head."""
    d = 7168
    more = plan("deepseek-v3", mtp=True).params["total"] - plan("deepseek-v3").params["total"]
    layer = plan("deepseek-v3").params["stacks"]["decoder"]["layers"][-1]
    assert more == layer + 3 * d + 2 * d * d


def test_llama_2_7b_pins_two_gibibytes_at_4096_tokens() -> None:
    """32 layers x 2 x 4,096 x 2 bytes = 512 KiB a token; 4,096 tokens are exactly 2 GiB."""
    cache = plan("llama2-7b", dtype="fp16", prompt=4095, generate=1).cache
    assert (cache["bytes_per_token"], cache["bytes"]) == (524_288, 2 * 2**30)


def test_llama_3_8b_at_128k_needs_16_gib_and_not_4() -> None:
    """A seed document says about 4 GB with GQA and 16 GB without; it is 16 GiB with, 64 GiB without."""
    assert plan("llama3.1-8b", prompt=131_071, generate=1).cache["bytes"] == 16 * 2**30


def test_the_original_base_has_63_million_parameters_and_not_110() -> None:
    """A seed document says 44M + 66M; cross-attention adds a third to a decoder layer's weights, not 50%."""
    made = plan("transformer-base").params
    assert made["total"] == 63_045_632
    encoder, decoder = (made["stacks"][side]["layers"][0] for side in ("encoder", "decoder"))
    assert (encoder, decoder) == (3_150_336, 4_199_936)


def test_a_snippet_without_a_model_type_is_planned_and_flagged() -> None:
    """The seeds print configs without model_type: read as Llama, and as Mistral where there is a window."""
    llama = plan(SNIPPET)
    mistral = plan(SNIPPET | {"vocab_size": 32768, "rope_theta": 1e6, "sliding_window": 4096})
    assert (llama.params["total"], mistral.params["total"]) == (8_030_261_248, 7_248_023_552)
    assert llama.model["notes"][0] == "ASSUMED: no model_type; read as llama because it has hidden_size"
    assert mistral.model["notes"][0] == "ASSUMED: no model_type; read as mistral because it has sliding_window"


def test_the_published_checkpoint_and_the_library_differ_in_t5_heads() -> None:
    """Flan-T5's head is its own in the checkpoint; transformers ties it, and a note says so."""
    ideal, library = plan("flan-t5-xl"), plan("flan-t5-xl", engine="transformers")
    assert ideal.params["total"] - library.params["total"] == ideal.params["head"] == 32_128 * 2048
    assert "transformers ties the head to the input table" in " ".join(library.model["notes"])


def test_switch_drops_tokens_beyond_its_capacity() -> None:
    """1,024 tokens, 8 experts, factor 1.0: room for 128 each; the binomial's excess is 3.3% of all."""
    moe = plan("switch-base-8", source=1024, capacity_factor=1.0).moe
    assert moe is not None
    assert moe["encoder"]["capacity_tokens"]["prefill"] == 128
    assert moe["encoder"]["dropped_share"]["prefill"] == pytest.approx(0.0330, abs=5e-4)


def test_a_long_prefill_visits_all_experts_and_a_single_step_k() -> None:
    """E (1 - (1 - k/E)^R): 2 of 8 for one token, all 8 for a thousand."""
    moe = plan("mixtral-8x7b", prompt=1000).moe
    assert moe is not None
    assert moe["decoder"]["distinct_experts"] == {"prefill": pytest.approx(8), "decode": pytest.approx(2)}


def test_mistral_reaches_131041_tokens_through_its_windows() -> None:
    """32 layers x 4,095 + 1; a seed document says 32 x 4,096."""
    assert plan("mistral-7b-v0.1").model["receptive_field_tokens"] == 131_041
