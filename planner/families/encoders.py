"""Encoder-only families, a row each."""

from __future__ import annotations

from planner.families.row import Family, row
from planner.topology.attention import grouped
from planner.topology.disentangled import deberta_between, deberta_head, disentangled
from planner.topology.encoder import (
    CLASSIFIER,
    around,
    blocks_of_keys,
    encoder,
    feeding,
    layer_norm,
    masked_lm,
    rms_norm,
    self_attention,
    tables,
    windows_around,
)
from planner.topology.encoder_parts import (
    adapted_feeding,
    albert_groups,
    cell_tables,
    contact_head,
    esm_positions,
    final_if_pre,
    four_times,
    glyph_tables,
    language_table,
    layer_table,
    low_rank_head,
    page_tables,
    position_waves,
    pre_norm,
    relative_bias,
    spread_windows,
    third_full,
)

_roberta = tables(offset=None)
_one_bias = masked_lm(second_bias=False)
_narrow = tables(width="embedding_size")
_to_table = masked_lm(inner="embedding_size", second_bias=False)
_turned = tables(positions=False)
_deberta = tables(
    width="embedding_size", positions=lambda c: c.flag("position_biased_input", True), projection="before_norm"
)

ENCODERS: dict[str, Family] = {
    "bert": row(encoder, "BertForMaskedLM"),
    "longformer": row(
        encoder, "LongformerForMaskedLM", front=_roberta, mixers=self_attention(masks=around, global_projections=True)
    ),
    "big_bird": row(
        encoder, "BigBirdForMaskedLM", pooler="always",
        mixers=self_attention(masks=blocks_of_keys, bias="use_bias", out_bias=True),
    ),
    "roberta": row(encoder, "RobertaForMaskedLM", front=_roberta),
    "xlm-roberta": row(encoder, "XLMRobertaForMaskedLM", front=_roberta),
    "camembert": row(encoder, "CamembertForMaskedLM", front=_roberta),
    "data2vec-text": row(encoder, "Data2VecTextForMaskedLM", front=_roberta),
    "roberta-prelayernorm": row(
        encoder, "RobertaPreLayerNormForMaskedLM", front=_roberta, wiring="pre", final_norm=layer_norm()
    ),
    "xlm-roberta-xl": row(
        encoder, "XLMRobertaXLForMaskedLM", front=tables(offset=None, norm=None), wiring="pre", final_norm=layer_norm()
    ),
    "megatron-bert": row(
        encoder, "MegatronBertForMaskedLM", front=tables(norm=None), wiring="pre", final_norm=layer_norm()
    ),
    "xmod": row(
        encoder, "XmodForMaskedLM", front=_roberta, feeds=adapted_feeding, wiring=pre_norm, final_norm=final_if_pre
    ),
    "ernie": row(
        encoder, "ErnieForMaskedLM",
        front=tables(further=layer_table("task_type_embeddings", "task_type_vocab_size", "use_task_id")),
    ),
    "layoutlm": row(encoder, "LayoutLMForMaskedLM", front=tables(further=page_tables), pooler="always"),
    "tapas": row(encoder, "TapasForMaskedLM", front=tables(types=False, further=cell_tables)),
    "roc_bert": row(encoder, "RoCBertForMaskedLM", front=tables(further=glyph_tables)),
    "distilbert": row(
        encoder, "DistilBertForMaskedLM", {"intermediate_size": "hidden_dim", "hidden_act": "activation"},
        front=tables(types=False), head=_one_bias, pooler="never",
    ),
    "mpnet": row(
        encoder, "MPNetForMaskedLM", ignores=("type_vocab_size",), front=tables(offset=2, types=False),
        between=relative_bias,
    ),
    "albert": row(
        encoder, "AlbertForMaskedLM", front=tables(width="embedding_size", projected="always"), arrange=albert_groups,
        head=masked_lm(inner="embedding_size"),
    ),
    "electra": row(encoder, "ElectraForMaskedLM", front=_narrow, head=_to_table, pooler="never"),
    "rembert": row(
        encoder, "RemBertForMaskedLM", ignores=("output_embedding_size",), front=tables(width="input_embedding_size", projected="always"),
        head=masked_lm(inner="output_embedding_size", second_bias=False, tied="never"),
    ),
    "roformer": row(
        encoder, "RoFormerForMaskedLM",
        front=tables(width="embedding_size", positions=False, bounded=True), between=position_waves,
        head=masked_lm(inner="embedding_size"), pooler="never",
    ),
    "deberta": row(
        encoder, "DebertaForMaskedLM", front=_deberta,
        mixers=disentangled(buckets=False), between=deberta_between, head=deberta_head(), pooler="never",
    ),
    "deberta-v2": row(
        encoder, "DebertaV2ForMaskedLM", front=_deberta,
        mixers=disentangled(buckets=True), between=deberta_between, head=deberta_head(), pooler="never",
    ),
    "esm": row(
        encoder, "EsmForMaskedLM",
        front=tables(
            positions=esm_positions, offset=None, types=False,
            norm=lambda c, width: layer_norm()(c, width) if c.flag("emb_layer_norm_before", False) else None,
        ),
        mixers=self_attention(rotary=lambda c: not esm_positions(c)), wiring="pre", final_norm=layer_norm(),
        between=contact_head, head=_one_bias,
    ),
    "modernbert": row(
        encoder, "ModernBertForMaskedLM",
        {"rope_theta": "global_rope_theta", "rope_local_base_freq": "local_rope_theta", "layer_norm_eps": "norm_eps"},
        front=tables(words="tok_embeddings", positions=False, types=False, norm=layer_norm(bias="norm_bias")),
        mixers=self_attention(masks=windows_around(spread_windows), bias="attention_bias", rotary=True),
        feeds=feeding(gated=True, up_bias="mlp_bias", down_bias="mlp_bias", activation="hidden_activation"),
        norm=layer_norm(bias="norm_bias"), wiring="pre", first_norm=False, final_norm=layer_norm(bias="norm_bias"),
        head=masked_lm(
            transform_bias="classifier_bias", norm=layer_norm(bias="norm_bias"), bias="decoder_bias", second_bias=False,
            activation="classifier_activation",
        ),
        pooler="never",
    ),
    "nomic_bert": row(
        encoder, "NomicBertForMaskedLM",
        {"hidden_size": "n_embd", "intermediate_size": "n_inner", "num_hidden_layers": "n_layer",
         "num_attention_heads": "n_head", "max_position_embeddings": "n_positions"},
        front=_turned, mixers=self_attention(bias=False, rotary=True),
        feeds=feeding(gated=True, up_bias=False, down_bias=False), pooler="never",
    ),
    "gte": row(
        encoder, "GteForMaskedLM", front=_turned, mixers=self_attention(rotary=True),
        feeds=feeding(gated=True, up_bias=False), head=_one_bias, pooler="never",
    ),
    "jina_embeddings_v3": row(
        encoder, "JinaEmbeddingsV3ForMaskedLM", front=_turned, mixers=self_attention(rotary=True),
    ),
    "eurobert": row(
        encoder, "EuroBertForMaskedLM", front=tables(words="embed_tokens", positions=False, types=False, norm=None),
        mixers=self_attention(bias="attention_bias", rotary=True, kv_heads=grouped),
        feeds=feeding(gated=True, up_bias="mlp_bias", down_bias="mlp_bias"), norm=rms_norm, wiring="pre",
        final_norm=rms_norm, head=masked_lm(transform=False, bias="mlp_bias", second_bias=False), pooler="never",
    ),
    "esmc": row(
        encoder, "EsmcForMaskedLM", front=tables(words="embed_tokens", positions=False, types=False, norm=None),
        mixers=self_attention(bias="attention_bias", rotary=True, kv_heads=grouped, qk_norm=layer_norm(bias=False)),
        feeds=feeding(gated=True, up_bias="mlp_bias", down_bias="mlp_bias"), wiring="pre",
        final_norm=layer_norm(bias=False), head=masked_lm(second_bias=False, tied="never"), pooler="never",
    ),
    "ultrabert": row(
        encoder, "UltrabertForMaskedLM", front=tables(words="embed_tokens", positions=False, types=False, norm=None),
        mixers=self_attention(masks=windows_around(third_full), bias="attention_bias", rotary=True, kv_heads=grouped),
        feeds=feeding(gated=True, up_bias="mlp_bias", down_bias="mlp_bias"), norm=rms_norm, wiring="pre",
        final_norm=rms_norm, head=low_rank_head, pooler="never",
    ),
    "xlm": row(
        encoder, "XLMWithLMHeadModel", {"vocab_size": "n_words"}, front=tables(types=False, further=language_table),
        feeds=four_times, head=masked_lm(transform=False, second_bias=False), pooler="never",
    ),
    "flaubert": row(
        encoder, "FlaubertWithLMHeadModel", {"vocab_size": "n_words"},
        front=tables(types=False, further=language_table), feeds=four_times, wiring=pre_norm,
        head=masked_lm(transform=False, second_bias=False), pooler="never",
    ),
}  # fmt: skip

OTHER_CLASSIFIERS = {"big_bird", "ultrabert", "xlm", "flaubert"}
"""Families whose classifier has another shape, or one dense layer more or less."""

ENCODERS |= {
    name: each._replace(classes=(*each.classes, each.architecture.replace("ForMaskedLM", CLASSIFIER)))
    for name, each in ENCODERS.items()
    if name not in OTHER_CLASSIFIERS
}
