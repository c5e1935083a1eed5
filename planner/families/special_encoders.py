"""Families of encoders (and near them) that need blocks of their own, a row each."""

from __future__ import annotations

from planner.families.row import Family, row
from planner.topology.encoder import encoder, feeding, masked_lm, self_attention, tables
from planner.topology.encoder_mixers import (
    activated,
    blockwise,
    bottleneck_attention,
    bottleneck_feeding,
    convolved,
    entity_attention,
    entity_head,
    entity_tables,
    exclusive_attention,
    fourier,
    grouped_attention,
    grouped_feeding,
    low_rank_front,
    low_rank_unembedding,
    shadowed,
    shadowed_tables,
    span_convolved,
    stored_types,
    trigram_front,
    uncounted_fourier,
    widened_head,
    without_images,
    wordless_entities,
)
from planner.topology.encoder_shapes import funnel, perceiver, prompted, xlnet
from planner.topology.encoder_towers import gathered
from planner.topology.multimodal import multimodal
from planner.topology.reformer import reformer

_roberta = tables(offset=None)
_narrow = tables(width="embedding_size")
_to_table = masked_lm(inner="embedding_size", second_bias=False)

SPECIAL_ENCODERS: dict[str, Family] = {
    "luke": row(
        encoder, "LukeForMaskedLM", front=tables(offset=None), mixers=entity_attention, between=entity_tables,
        head=entity_head, pooler="always", notes=wordless_entities,
    ),
    "fnet": row(
        encoder, "FNetForMaskedLM", front=tables(projected="always"), mixers=fourier, pooler="always",
        notes=uncounted_fourier,
    ),
    "mobilebert": row(
        encoder, "MobileBertForMaskedLM", front=trigram_front, mixers=bottleneck_attention, feeds=bottleneck_feeding,
        wiring="none", head=widened_head, pooler=activated,
    ),
    "squeezebert": row(
        encoder, "SqueezeBertForMaskedLM", front=_narrow, mixers=grouped_attention,
        feeds=grouped_feeding(up="intermediate_groups", down="output_groups"), pooler="always",
    ),
    "convbert": row(
        encoder, "ConvBertForMaskedLM", front=_narrow, mixers=span_convolved,
        feeds=grouped_feeding(up="num_groups", down="num_groups"), head=_to_table, pooler="never",
    ),
    "nystromformer": row(
        encoder, "NystromformerForMaskedLM", front=tables(spare=2, offset=2),
        mixers=convolved(kernel="conv_kernel_size", landmarks=True), pooler="never",
    ),
    "yoso": row(
        encoder, "YosoForMaskedLM", front=tables(spare=2, offset=2), mixers=convolved(kernel="conv_window"),
        pooler="never",
    ),
    "mra": row(
        encoder, "MraForMaskedLM", front=tables(spare=2, offset=2, further=stored_types), mixers=blockwise,
        pooler="never",
    ),
    "ibert": row(
        encoder, "IBertForMaskedLM", front=_roberta, mixers=shadowed(self_attention(), 25),
        feeds=shadowed(feeding(), 19), between=shadowed_tables,
    ),
    "neomme": row(
        encoder, "NeoMMEForMaskedLM", front=low_rank_front, mixers=exclusive_attention,
        feeds=feeding(up_bias="mlp_bias", down_bias="mlp_bias"), wiring="none", head=low_rank_unembedding,
        pooler="never", ignores=("embedding_dim",), notes=without_images,
    ),
    "funnel": row(
        funnel, "FunnelForMaskedLM", {"head_dim": "d_head", "intermediate_size": "d_inner"},
        ignores=("max_position_embeddings", "type_vocab_size"),
    ),
    "perceiver": row(perceiver, "PerceiverForMaskedLM", {"hidden_size": "d_model"}, ignores=("image_size",)),
    "xlnet": row(
        xlnet, "XLNetLMHeadModel",
        {"vocab_size": "n_token", "intermediate_size": "d_inner", "head_dim": "d_head", "hidden_act": "ff_activation"},
        ignores=("max_position_embeddings",),
    ),
    "modernvbert": row(
        multimodal, "ModernVBertForMaskedLM", ignores=("classifier_bias",), senses=gathered(norm=False),
        at="model.text_model.",
    ),
    "ultravbert": row(multimodal, "UltraVBertForMaskedLM", senses=gathered(norm=True), at="model.text_model."),
    "cpmant": row(
        prompted, "CpmAntForCausalLM",
        {"intermediate_size": "dim_ff", "head_dim": "dim_head", "rms_norm_eps": "eps",
         "relative_attention_num_buckets": "position_bias_num_buckets"},
    ),
    "reformer": row(
        reformer, "ReformerForMaskedLM", ignores=("intermediate_size", "head_dim"), classes=("ReformerModelWithLMHead",),
    ),
}  # fmt: skip
