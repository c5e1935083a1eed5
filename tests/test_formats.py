"""Other forms that a model comes in: params.json, safetensors headers, GGUF, a hub's name."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import planner

TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
SHAPES = {
    "model.embed_tokens.weight": (100, 32),
    **{
        f"model.layers.{i}.{name}.weight": shape
        for i in range(2)
        for name, shape in {
            "self_attn.q_proj": (32, 32),
            "self_attn.k_proj": (16, 32),
            "self_attn.v_proj": (16, 32),
            "self_attn.o_proj": (32, 32),
            "mlp.gate_proj": (64, 32),
            "mlp.up_proj": (64, 32),
            "mlp.down_proj": (32, 64),
            "input_layernorm": (32,),
            "post_attention_layernorm": (32,),
        }.items()
    },
    "model.norm.weight": (32,),
    "lm_head.weight": (100, 32),
}


def write_safetensors(file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write a file of zeros with these tensors in bf16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = 2
        for each in shape:
            size *= each
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))


def test_a_checkpoint_agrees_with_its_config(tmp_path: Path) -> None:
    """Names, shapes and bytes from the headers: every layer and what stands around them."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    write_safetensors(tmp_path / "model.safetensors", SHAPES)
    made = planner.plan(tmp_path)
    total = sum(a * b for a, b in [(100, 32)] * 2) + 2 * (32 * 32 * 2 + 2 * 16 * 32 + 3 * 64 * 32 + 2 * 32) + 32
    assert made.checkpoint == {
        "files": 1,
        "tensors": 21,
        "elements": total,
        "bytes": 2 * total,
        "agrees": True,
        "differences": [],
    }
    assert made.weights["bytes"] == 2 * total


def test_a_checkpoint_that_differs_says_where(tmp_path: Path) -> None:
    """A wider feed-forward block in layer 1 only."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    write_safetensors(tmp_path / "model.safetensors", SHAPES | {"model.layers.1.mlp.up_proj.weight": (65, 32)})
    found = planner.plan(tmp_path).checkpoint
    assert found is not None
    assert found["differences"] == ["decoder layer 1: the checkpoint holds 9,312 elements, the plan 9,280"]


def test_a_damaged_safetensors_file_is_refused(tmp_path: Path) -> None:
    """The message names the file."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(planner.PlanError, match=r"model\.safetensors: not a readable safetensors file"):
        planner.plan(tmp_path)


@pytest.mark.parametrize(
    ("params", "total"),
    [
        (  # Mistral-7B v0.1
            {"dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8,
             "norm_eps": 1e-5, "sliding_window": 4096, "vocab_size": 32000},
            7_241_732_096,
        ),
        (  # Mixtral 8x7B
            {"dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8,
             "norm_eps": 1e-5, "vocab_size": 32000, "moe": {"num_experts_per_tok": 2, "num_experts": 8}},
            46_702_792_704,
        ),
        (  # Llama-3-8B, as Meta publishes it
            {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256, "multiple_of": 1024,
             "ffn_dim_multiplier": 1.3, "norm_eps": 1e-05, "rope_theta": 500000.0},
            8_030_261_248,
        ),
        (  # Llama-2-7B: the vocabulary is the tokenizer's
            {"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-05, "vocab_size": -1},
            6_738_415_616,
        ),
    ],
)  # fmt: skip
def test_params_json(tmp_path: Path, params: dict[str, Any], total: int) -> None:
    """Mistral's and Meta's own files give the published counts."""
    (tmp_path / "params.json").write_text(json.dumps(params))
    assert planner.plan(tmp_path / "params.json").params["total"] == total
    assert planner.plan(tmp_path).params["total"] == total


def test_a_gguf_file(tmp_path: Path) -> None:
    """Sizes from the metadata, the vocabulary from the table, a separate head from its tensor."""
    gguf = pytest.importorskip("gguf", reason="GGUF files need planformer[gguf]")
    np = pytest.importorskip("numpy")
    file = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_context_length(128)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    names = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "q_proj": "attn_q", "k_proj": "attn_k",
             "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
             "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}  # fmt: skip
    for name, shape in SHAPES.items():
        parts = name.split(".")
        prefix = f"blk.{parts[2]}." if "layers" in parts else ""
        writer.add_tensor(f"{prefix}{names[parts[-2]]}.weight", np.zeros(shape, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    made = planner.plan(file)
    assert made.params["total"] == planner.plan(TINY).params["total"]
    assert made.checkpoint is not None
    assert made.checkpoint["agrees"] is True
    assert made.precision["weights"] == "fp16"


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    """The message names the file."""
    pytest.importorskip("gguf", reason="GGUF files need planformer[gguf]")
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    with pytest.raises(planner.PlanError, match=r"x\.gguf: not a readable GGUF file"):
        planner.plan(tmp_path / "x.gguf")


def test_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """hf:ORG/NAME is fetched, read and named after the model."""
    hub = pytest.importorskip("huggingface_hub", reason="hub names need planformer[hub]")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TINY))
    monkeypatch.setattr(hub, "hf_hub_download", lambda name, _: str(file) if name == "org/tiny" else None)
    made = planner.plan("hf:org/tiny")
    assert (made.model["name"], made.params["total"]) == ("tiny", planner.plan(TINY).params["total"])


def test_a_hub_name_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason and the next step are in the message."""
    hub = pytest.importorskip("huggingface_hub", reason="hub names need planformer[hub]")

    def fail(*_: object) -> str:
        raise OSError("no network")

    monkeypatch.setattr(hub, "hf_hub_download", fail)
    with pytest.raises(planner.PlanError, match="--config hf:org/tiny: can't be fetched: no network"):
        planner.plan("hf:org/tiny")
