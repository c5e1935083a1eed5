"""The keys of a config.json: which there are, what they may hold, and a reader that remembers what was asked for.

Only keys of `VOCABULARY` can be read. A key that changes sizes (`structural`) and that nothing read is refused unless
its value has no effect, so that a feature the planner doesn't model can't be left out silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from planner.errors import PlanError

LARGEST = 2**40
"""Largest count that a key may hold; the largest real one (a vocabulary) is below 2**20."""

MOST_LAYERS = 10_000
"""Most layers of a stack; the deepest published transformer has 1,000 (DeepNet, arXiv:2203.00555)."""

REQUIRED: Any = object()
"""No default: the key must be there, or have a family default."""


class Key(NamedTuple):
    """A key of a config.

    Attributes:
        holds: what its value must be.
        structural: it changes parameters, cache or FLOPs.
        inert: values with which it changes nothing, besides null, false, 0, "" and empty lists.
    """

    holds: Literal["count", "layers", "flag", "number", "text", "list", "table", "any"]
    structural: bool = True
    inert: tuple[Any, ...] = ()


NOTHING = Key("any")


def _keys(holds: Any, names: str, *, structural: bool = True) -> dict[str, Key]:
    return {name: Key(holds, structural) for name in names.split()}


VOCABULARY: dict[str, Key] = {
    **_keys(
        "layers",
        "num_hidden_layers num_hidden_groups inner_group_num encoder_layers decoder_layers num_nextn_predict_layers",
    ),
    **_keys(
        "count",
        "hidden_size vocab_size intermediate_size num_attention_heads num_key_value_heads head_dim "
        "encoder_attention_heads decoder_attention_heads encoder_ffn_dim decoder_ffn_dim "
        "max_position_embeddings max_source_positions max_target_positions num_mel_bins type_vocab_size "
        "num_experts num_experts_per_tok moe_intermediate_size n_shared_experts first_k_dense_replace moe_layer_freq "
        "encoder_sparse_step decoder_sparse_step num_sparse_encoder_layers num_sparse_decoder_layers "
        "q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim "
        "sliding_window sliding_window_pattern max_window_layers block_size num_random_blocks "
        "relative_attention_num_buckets num_ln_in_parallel_attn",
    ),
    **_keys(
        "flag",
        "attention_bias mlp_bias bias use_bias tie_word_embeddings use_sliding_window multi_query "
        "new_decoder_architecture parallel_attn alibi is_decoder add_cross_attention router_bias",
    ),
    **_keys(
        "flag",
        "scale_embedding norm_topk_prob rope_interleave scale_attn_weights scale_attn_by_inverse_layer_idx",
        structural=False,
    ),
    **_keys(
        "number",
        "rms_norm_eps layer_norm_eps layer_norm_epsilon rope_theta rope_local_base_freq partial_rotary_factor "
        "query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping routed_scaling_factor "
        "relative_attention_max_distance expert_capacity",
        structural=False,
    ),
    **_keys("text", "feed_forward_proj attention_type"),
    **_keys("count", "n_group topk_group rotary_dim", structural=False),
    **_keys("text", "hidden_act hidden_activation activation_function activation topk_method", structural=False),
    "position_embedding_type": Key("text", inert=("absolute",)),
    "attention_window": Key("any"),
    **_keys("any", "per_layer_config patch_size image_size temporal_patch_size merge_kernel_size vision_feature_layer"),
    **_keys("list", "deepstack_visual_indexes"),
    **_keys("list", "fullatt_block_indexes", structural=False),
    **_keys(
        "count",
        "num_channels spatial_merge_size out_hidden_size num_position_embeddings num_patches pos_emb_height pos_emb_width "
        "vision_output_dim projector_input_dim projector_output_dim projector_hidden_size projection_hidden_size "
        "downsample_factor embed_dim num_kv_shared_layers hidden_size_per_layer_input vocab_size_per_layer_input "
        "altup_num_inputs laurel_rank global_head_dim num_global_key_value_heads position_embedding_size "
        "pooling_kernel_size",
    ),
    **_keys("flag", "attention_k_eq_v use_double_wide_mlp enable_moe_block standardize"),
    "use_bidirectional_attention": Key("text", inert=("vision",)),  # among an image's tokens: no text pass changes
    **_keys("count", "window_size mm_tokens_per_image vision_soft_tokens_per_image", structural=False),
    **_keys("flag", "multimodal_projector_bias projector_bias projector_use_layernorm vision_use_head"),
    **_keys("number", "mlp_ratio pixel_shuffle_ratio", structural=False),
    **_keys("text", "vision_feature_select_strategy", structural=False),
    **_keys("count", "share_expert_dim num_sliding_attention_heads"),
    **_keys("list", "subsampling_conv_channels global_attn_indexes downsampling_ratios depths"),
    **_keys("count", "num_filters ffn_expansion channels frequency_embedding_size latent_size", structural=False),
    **_keys("table", "projector_patch_to_query_dict img_processor embd_layer"),
    **_keys(
        "count",
        "scale_factor alignment_intermediate_size mm_embed_dim mm_posemb_size backbone_hidden_size num_centroids",
    ),
    **_keys("flag", "use_ordered_embeddings use_mean_pooling use_mask_token use_absolute_position_embeddings"),
    **_keys("number", "downsample_ratio", structural=False),
    **_keys("text", "norm_type", structural=False),
    **_keys("flag", "use_clipped_linears use_rel_pos use_abs_pos bias_symmetric"),
    **_keys(
        "count",
        "output_proj_dims conv_kernel_size num_stacked_frames fsmn_kernel_size num_timestamp_prediction_layers "
        "dim_head conv_expansion_factor feedforward_mult input_dim max_pos_emb encoder_hidden_size cross_attention_frequency "
        "downsample_rate ext_pw_out_channel nemo_conv_channels input_size kernel_size depthwise_multiplier time_reduction "
        "bias_max_distance depthwise_separable_out_channel audio_downsample_rate mlp_dim output_channels",
        structural=False,
    ),
    **_keys("any", "moe_layers_enum cross_attention_layers supported_aspect_ratios intermediate_layers_indices"),
    **_keys("count", "max_num_tiles num_global_layers audio_merge_size downsample_hidden_size output_dim ffn_dim"),
    **_keys("table", "attention_other_setting"),
    **_keys("count", "additional_vocab_size moe_hidden_size"),
    **_keys("list", "kv_source_layers"),
    **_keys("flag", "norm_after use_swiglu_ffn"),
    **_keys("flag", "projection_bias", structural=False),
    **_keys(
        "count",
        "text_hidden_size n_mel_bins mel_vocab_size posemb_grid_size projection_hidden_dim max_image_size max_img_size "
        "num_cls_tokens num_registers video_temporal_patch_size vision_hidden_size merge_size "
        "base_channels resolution latent_channels in_channels sampling_rate",
        structural=False,
    ),
    **_keys("text", "qk_norm_type", structural=False),
    **_keys("list", "hidden_sizes patch_sizes summary_idxs channel_multiplier attn_resolutions", structural=False),
    **_keys("flag", "enable_audio_output", structural=False),
    **_keys(
        "count",
        "mel_dim emb_dim num_embeds enc_dim enc_emb_dim enc_res2net_scale enc_se_channels enc_attention_channels "
        "thinker_hidden_size decoder_dim upsample_initial_channel",
        structural=False,
    ),
    **_keys("number", "ff_mult", structural=False),
    **_keys(
        "list",
        "enc_channels enc_kernel_sizes enc_dilations upsample_rates upsample_kernel_sizes resblock_kernel_sizes "
        "resblock_dilation_sizes",
        structural=False,
    ),
    **_keys("count", "index_kpool projection_intermediate_size"),
    **_keys("count", "temporal_merge_size n_window n_window_infer conv_chunksize", structural=False),
    "layer_types": Key("list"),
    **_keys("table", "rope_scaling rope_parameters", structural=False),
    **_keys(
        "count",
        "num_local_experts n_routed_experts num_shared_experts shared_expert_intermediate_size shared_intermediate_size "
        "moe_layer_interval moe_layer_start_index moe_layer_end_index "
        "intermediate_size_mlp interleave_moe_layer_step attention_chunk_size no_rope_layer_interval "
        "dense_intermediate_size prefix_dense_intermediate_size prefix_dense_sliding_window_pattern "
        "index_topk index_n_heads index_head_dim index_block_size index_topk_blocks index_topk_freq "
        "index_skip_topk_offset zero_expert_num o_groups o_lora_rank hc_mult num_hash_layers gated_norm_rank "
        "index_local_blocks swa_num_key_value_heads swa_num_attention_heads swa_head_dim swa_v_head_dim sliding_window_size "
        "moe_shared_expert_intermediate_size shared_experts_intermediate_size",
    ),
    **_keys(
        "list",
        "mlp_layer_types mlp_only_layers moe_layers no_rope_layers indexer_types compress_ratios hybrid_layer_pattern "
        "num_attention_heads_per_layer attn_type_list",
    ),
    **_keys("flag", "qkv_bias use_qk_norm lm_head_bias add_swa_attention_sink_bias add_full_attention_sink_bias"),
    **_keys("any", "gating index_topk_pattern"),
    **_keys("flag", "use_dsa moe_router_enable_expert_bias", structural=False),
    "moe_layer_freq": Key("any", inert=(1,)),
    "decoder_sparse_step": Key("count", inert=(1,)),
    **_keys("table", "per_layer_config compress_rates sparse_attention_config attn_config ffn_config"),
    **_keys("number", "attention_multiplier", structural=False),
    **_keys(
        "count",
        "word_embed_proj_dim expansion_ratio intermediate_multiple_size local_attention global_attn_every_n_layers "
        "kv_channels pre_seq_len",
    ),
    **_keys("count", "rotary_dim keep_window_size", structural=False),
    **_keys(
        "flag",
        "attention_out_bias use_qkv_bias qk_layernorm use_parallel_residual use_post_norm do_layer_norm_before "
        "_remove_final_layer_norm enable_bias is_moe no_bias norm_bias classifier_bias decoder_bias add_bias_linear "
        "add_qkv_bias rmsnorm post_layer_norm multi_query_attention normalize_qk_projections ffn_with_glu "
        "layernorm_embedding use_learned_position_embeddings",
    ),
    "layer_norm_elementwise_affine": Key("flag", inert=(True,)),
    **_keys("count", "ffn_dim_divisor num_gqa_groups inner_hidden_size output_vocab_size"),
    **_keys("list", "num_key_value_heads_per_layer block_configs num_query_heads num_kv_heads"),
    **_keys("any", "ffn_multipliers qkv_multipliers"),
    **_keys("any", "attention_types"),
    **_keys(
        "count",
        "num_codebooks src_vocab_size decoder_vocab_size composer_vocab_size num_conv_layers conv_channels input_feat_per_channel "
        "input_channels local_radius global_block_size num_global_tokens num_buckets "
        "encoder_key_value_heads decoder_key_value_heads cross_num_attention_heads cross_head_dim "
        "cross_num_key_value_heads cross_hidden_size conv_kernel_size subsampling_factor subsampling_conv_channels "
        "subsampling_conv_kernel_size subsampling_conv_stride",
    ),
    **_keys(
        "flag", "share_encoder_decoder_embeddings use_prompt stagger_local_blocks convolution_bias tie_encoder_decoder"
    ),
    **_keys("count", "cross_attention_hidden_size"),
    **_keys("text", "encoder_attention_type"),
    **_keys("layers", "ngram"),
    **_keys("layers", "num_residual_layers", structural=False),
    **_keys("list", "conv_kernel_sizes conv_dim conv_stride conv_kernel"),
    **_keys("flag", "conv_bias do_stable_layer_norm add_adapter"),
    **_keys("count", "num_conv_pos_embeddings num_conv_pos_embedding_groups encoder_max_relative_position"),
    **_keys("text", "feat_extract_norm"),
    **_keys("count", "codebook_vocab_size sample_rate"),
    **_keys("number", "frame_ms"),
    **_keys("list", "sliding_windows"),
    **_keys(
        "count",
        "audio_channels num_filters kernel_size last_kernel_size residual_kernel_size compress "
        "codebook_size codebook_dim num_quantizers num_semantic_quantizers vector_quantization_hidden_dimension "
        "upsample_groups",
        structural=False,
    ),
    **_keys("flag", "use_conv_shortcut", structural=False),
    **_keys("list", "upsampling_ratios", structural=False),
    **_keys("number", "mask_time_prob mask_feature_prob", structural=False),
    **_keys("count", "pad_token_id pad_head_dim_to_multiple_of", structural=False),
    **_keys("text", "dense_act_fn encoder_hidden_act decoder_hidden_act", structural=False),
    **_keys(
        "count",
        "mamba_d_state mamba_d_conv mamba_n_heads mamba_n_groups mamba_d_ssm linear_num_key_heads linear_num_value_heads "
        "linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim linear_num_heads linear_head_dim "
        "short_conv_kernel_size lru_width conv1d_width conv_L_cache attention_hidden_size block_ff_dim block_multiple_of "
        "embedding_dim ffn_round_up_to_multiple_of adapter_rank num_mem_blocks attn_layer_period attn_layer_offset "
        "expert_layer_period expert_layer_offset full_attention_interval layer_group_size moe_latent_size "
        "moe_shared_expert_intermediate_size num_dense_layers",
    ),
    **_keys("any", "mamba_dt_rank mamba_d_head"),
    **_keys("number", "mamba_expand qk_dim_factor v_dim_factor ffn_proj_factor block_ffn_dim_multiplier"),
    **_keys(
        "flag",
        "mamba_conv_bias mamba_proj_bias mamba_rms_norm projectors_bias conv_bias use_shared_attention_adapter "
        "block_auto_adjust_ff_dim use_expert_bias use_sandwich_norm use_attention_gate",
    ),
    **_keys("flag", "use_mem_rope", structural=False),
    **_keys("list", "attn_layer_indices block_types full_attn_idxs"),
    **_keys("text", "hybrid_override_pattern"),
    **_keys(
        "count",
        "num_layers_per_stack H_cycles L_cycles n_input_layers n_recurrent_layers n_output_layers n_recurrent_loops "
        "unpadded_vocab_size n_layers_per_attn_res_block d_rel rel_extent sconv_kernel_size dense_mlp_idx router_hidden_size cca_time0 cca_time1 "
        "loop_layer_index_start loop_layer_index_end loop_num_passes loop_gate_rank",
    ),
    **_keys("count", "num_speakers audio_hidden_size upsampling_factor", structural=False),
    **_keys("text", "recurrent_kv_cache_mode"),
    **_keys("list", "local_layer_ids"),
    **_keys("table", "linear_attn_config loop_config"),
    **_keys(
        "count",
        "embedding_size input_embedding_size output_embedding_size task_type_vocab_size "
        "max_2d_position_embeddings entity_vocab_size entity_emb_size pronunciation_embed_dim pronunciation_vocab_size "
        "shape_embed_dim shape_vocab_size q_groups k_groups v_groups post_attention_groups intermediate_groups "
        "output_groups head_ratio conv_kernel_size num_groups intra_bottleneck_size num_feedforward_networks "
        "adapter_reduction_factor num_landmarks segment_means_seq_len conv_window prediction_head_size conv_groups "
        "attention_head_size n_langs embedding_rank block_per_row",
    ),
    **_keys("text", "approx_mode cross_attention_shape_for_attention attn_type"),
    **_keys(
        "count",
        "pixel_shuffle_factor prompt_types prompt_length segment_types mem_len num_latents d_latents num_blocks "
        "num_self_attends_per_block num_self_attention_heads num_cross_attention_heads "
        "qk_channels v_channels self_attention_widening_factor cross_attention_widening_factor",
    ),
    **_keys("list", "block_sizes block_repeats"),
    **_keys("layers", "num_decoder_layers"),
    **_keys("flag", "separate_cls truncate_seq pool_q_only use_mems_eval", structural=False),
    **_keys(
        "flag",
        "relative_attention share_att_key talking_head use_task_id enable_pronunciation enable_shape concat_input "
        "use_entity_aware_attention trigram_input use_bottleneck use_bottleneck_attention key_query_shared_bottleneck "
        "emb_layer_norm_before adapter_layer_norm is_folding_model asm causal",
    ),
    **_keys(
        "flag",
        "position_biased_input legacy pre_norm use_lang_emb is_encoder gelu_activation use_expectation",
        structural=False,
    ),
    **_keys("any", "classifier_activation", structural=False),
    "max_relative_positions": Key("count", inert=(-1,)),
    "position_buckets": Key("count", inert=(-1,)),
    "pos_att_type": Key("any"),
    "norm_rel_ebd": Key("text", inert=("none",)),
    **_keys("list", "type_vocab_sizes languages attention_windows"),
    **_keys("list", "attn_layers axial_pos_shape axial_pos_embds_dim"),
    **_keys("flag", "axial_pos_embds"),
    **_keys(
        "count",
        "num_hashes local_attn_chunk_length local_num_chunks_before local_num_chunks_after lsh_attn_chunk_length "
        "feed_forward_size lsh_num_chunks_before lsh_num_chunks_after",
    ),
    **_keys(
        "count",
        "cross_attn_k hidden_size_global encoder_hash_byte_group_vocab encoder_hash_byte_group_nb_functions "
        "local_attention_window_len",
    ),
    **_keys("flag", "cross_attn_all_layers patch_in_forward"),
    **_keys("list", "encoder_hash_byte_group_size"),
    **_keys("text", "patching_mode", structural=False),
    **_keys(
        "count",
        "num_query_tokens resampler_n_latents resampler_n_heads resampler_head_dim additional_vocab_size "
        "cross_layer_interval latent_query_num patch_embed_hidden_size max_num_patches",
    ),
    **_keys("flag", "use_qformer_text_input qk_layer_norms qk_layer_norms_perceiver use_resampler"),
    **_keys("count", "max_temporal_embeddings post_conv_in_channels post_conv_mid_channels post_conv_out_channels"),
    **_keys("count", "projection_dim pooler_output_size decoder_hidden_size d_ff d_kv seq_len", structural=False),
    **_keys("list", "patch_prenorm relative_bias_args"),
    **_keys("any", "num_heads", structural=False),
    **_keys("flag", "use_absolute_embeddings"),
    **_keys("text", "alpha_type", structural=False),
    **_keys("list", "channel_multiplier downsample_channels", structural=False),
    **_keys(
        "count",
        "projection_dim depth num_image_tokens num_embeddings latent_channels in_channels base_channels "
        "out_channels image_token_embed_dim density_router_hidden_size num_pos_feats",
        structural=False,
    ),
    **_keys("flag", "double_latent use_fine_route", structural=False),
    **_keys("flag", "use_qformer_text_input swin_norm aligner_enable_bias"),
    **_keys("list", "attn_resolutions", structural=False),
    **_keys("any", "deepstack_layer_map"),
    **_keys("list", "ple_layer_ids"),
    **_keys("count", "indexer_n_heads indexer_kv_heads indexer_head_dim indexer_budget indexer_compress_ratio"),
    **_keys(
        "count",
        "hc_count hc_lowrank ple_embed_dim ple_conv_kernel_size ngram_size heads_per_ngram ngram_vocab_size_base "
        "make_ngram_vocab_size_divisible_by",
        structural=False,
    ),
    **_keys(
        "count",
        "resolution max_image_size text_hidden_size max_action_dim max_state_dim aligner_ffn_mult "
        "resampler_dim_head resampler_heads resampler_num_latents resampler_ff_mult",
        structural=False,
    ),
    **_keys("count", "num_labels", structural=False),
    **_keys("table", "id2label", structural=False),
    "spatial_pool_mode": Key("text", inert=("average", "max")),
    **_keys("count", "spatial_pool_stride spatial_pool_out_channels", structural=False),
    **_keys("count", "hidden_stride num_visual_indicator_tokens"),
    **_keys("any", "window_kernel_size"),
    **_keys("layers", "merger_times"),
    **_keys(
        "layers",
        "num_res_blocks num_lstm_layers aligner_num_add_layers resampler_depth num_code_groups",
        structural=False,
    ),
}

SYNONYMS = {
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "n_shared_experts": ("num_shared_experts",),
}
"""Keys that mean the same in all families: configs are saved with either."""

NULL_IS_MISSING = frozenset({"head_dim"})
"""Keys whose null says no more than a missing key: files written by class say null where their authors said nothing."""

HARMLESS = frozenset(
    [
        "max_patch_length",
        "patching_batch_size",
        "patching_threshold",
        "axial_norm_std",
        "chunk_size_lm_head",
        "hash_seed",
        "sinusoidal_pos_embds",
        "ignore_index",
        "projector_hidden_act",
        "image_seq_length",
        "video_seq_length",
        "projector_layernorm_eps",
        "tokenize_function",
        "drop_path_rate",
        "layer_scale_init_value",
        "insert_layer_id",
        "downsample_mode",
        "drop_vision_last_layer",
        "image_start_id",
        "image_end_id",
        "slice_start_id",
        "slice_end_id",
        "newline_id",
        "image_grid_pinpoints",
        "vision_segment_max_frames",
        "tokens_per_second",
        "_name_or_path",
        "add_bias_logits",
        "add_final_layer_norm",
        "add_router_probs",
        "apply_residual_connection_post_layernorm",
        "apply_spec_augment",
        "architectures",
        "auto_map",
        "aux_loss_alpha",
        "batch_prioritized_routing",
        "begin_suppress_tokens",
        "cache_implementation",
        "chunk_size_feed_forward",
        "decoder_start_token_id",
        "dense_act_fn",
        "dtype",
        "early_stopping",
        "ep_size",
        "finetuning_task",
        "force_bos_token_to_be_generated",
        "gradient_checkpointing",
        "gradient_checkpointing_use_reentrant",
        "id2label",
        "init_std",
        "initializer_factor",
        "is_encoder_decoder",
        "is_gated_act",
        "label2id",
        "length_penalty",
        "lm_label_smoothing",
        "max_length",
        "median_filter_width",
        "min_length",
        "model_type",
        "moe_eval_capacity_token_fraction",
        "moe_token_dropout",
        "n_ctx",
        "n_group",
        "n_special",
        "name_or_path",
        "no_repeat_ngram_size",
        "normalize_before",
        "normalize_embedding",
        "normalize_router_prob_before_dropping",
        "num_beams",
        "num_labels",
        "onnx_export",
        "original_max_position_embeddings",
        "predict_special_tokens",
        "prefix",
        "pretraining_tp",
        "problem_type",
        "qk_head_dim",
        "quantization_config",
        "reorder_and_upcast_attn",
        "rescale_embeddings",
        "rope_interleave",
        "router_aux_loss_coef",
        "router_dtype",
        "router_ignore_padding_tokens",
        "router_jitter_noise",
        "router_z_loss_coef",
        "save_step",
        "scale_decoder_outputs",
        "scoring_func",
        "second_expert_policy",
        "sep_token_id",
        "seq_aux",
        "static_position_embeddings",
        "suppress_tokens",
        "task_specific_params",
        "tokenizer_class",
        "topk_group",
        "topk_method",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "use_weighted_layer_sum",
        "aux_loss_coef",
        "expert_selection_fn",
        "layer_rope_theta",
        "moe_routed_scaling_factor",
        "shared_expert_combination_strategy",
        "embedding_dropout",
        "moe_router_enable_shared_expert",
        "multi_gate",
        "norm_head",
        "norm_softmax",
        "score_function",
        "use_rmsnorm",
        "use_rotary_pos_emb",
        "attention_value_scale",
        "attn_scale",
        "attn_temperature_tuning",
        "compress_rope_theta",
        "embedding_multiplier",
        "expert_dtype",
        "index_share_for_mtp_iteration",
        "moe_router_dtype",
        "swa_rope_theta",
        "use_gemma_norm",
        "enable_moe_fp32_combine",
        "floor_scale",
        "fmt",
        "hc_eps",
        "hc_magnitude",
        "hc_sinkhorn_iters",
        "accept_hidden_layer",
        "enable_talker",
        "ignored_index",
        "index_kpool_always_select_tail",
        "position_id_per_seconds",
        "rope_is_neox_style",
        "seconds_per_chunk",
        "use_3d_rope",
        "use_token_compression",
        "linear_lower_bound",
        "indexer_rope_interleave",
        "initial_context_length",
        "input_jitter_noise",
        "learnable_sink_init",
        "logits_scaling",
        "mlp_router_jitter",
        "moe_jitter_eps",
        "moe_norm_min",
        "mtp_loss_scaling_factor",
        "mtp_transformer_layers",
        "bad_words_ids",
        "diversity_penalty",
        "do_sample",
        "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty",
        "extra_pos_embeddings",
        "num_beam_groups",
        "num_return_sequences",
        "remove_invalid_values",
        "repetition_penalty",
        "temperature",
        "tf_legacy_loss",
        "top_k",
        "top_p",
        "torchscript",
        "typical_p",
        "use_bfloat16",
        "mup_enabled",
        "num_mtp_modules",
        "qk_norm_type",
        "residual_multiplier",
        "router_scaling_factor",
        "swiglu_alpha",
        "swiglu_limit",
        "use_mtp",
        "use_routing_bias",
        "apply_query_key_layer_scaling",
        "attention_softmax_in_fp32",
        "attn_implementation",
        "attn_impl",
        "bias_dropout_fusion",
        "clip_qkv",
        "dim_model_base",
        "embedding_fraction",
        "flash_attn",
        "flash_rotary",
        "fp32_residual_connection",
        "full_attn_mod",
        "fused_dense",
        "inference_runner",
        "init_config",
        "init_device",
        "initializer_cutoff_factor",
        "interpolate_factor",
        "lambda_std_dev",
        "learned_pos_emb",
        "logit_scale",
        "mlp_type",
        "normalization_layer_name",
        "rope_freq_constant",
        "rope_max_length",
        "seq_length",
        "mup_base_width",
        "norm_type",
        "original_rope",
        "rope_ratio",
        "rotary",
        "runner_max_sequence_length",
        "scale_attn_weights",
        "scale_attention_softmax_in_fp32",
        "scale_depth",
        "scale_emb",
        "slow_but_exact",
        "tokenizer_name",
        "torchscript",
        "use_dynamic_ntk",
        "use_flash_attn",
        "use_logn_attn",
        "use_mrope",
        "validate_runner_input",
        "verbose",
        "add_out_norm",
        "attention_in_multiplier",
        "attention_out_multiplier",
        "attn_output_gate",
        "autocast_kernel_dtype",
        "block_dim",
        "calc_logits_for_entire_prompt",
        "chunk_size",
        "chunkwise_kernel",
        "conv_use_xavier_init",
        "eps",
        "final_w_init_variance_scale",
        "full_attn_alpha_factor",
        "full_attn_beta_factor",
        "gate_soft_cap",
        "hidden_mamba_act",
        "hybrid_layer_ids",
        "inference_state_dtype",
        "kda_lower_bound",
        "kda_safe_gate",
        "key_multiplier",
        "linear_a_log_max",
        "linear_a_log_min",
        "linear_allow_neg_eigval",
        "linear_attn_alpha_factor",
        "linear_attn_beta_factor",
        "linear_dt_init_floor",
        "linear_dt_max",
        "linear_dt_min",
        "lm_head_multiplier",
        "mamba_act",
        "mamba_chunk_size",
        "mamba_headdim",
        "mamba_hidden_act",
        "mamba_norm_before_gate",
        "mamba_ssm_cache_dtype",
        "mamba_ssm_dtype",
        "max_inference_chunksize",
        "mixer_rms_eps",
        "mlp_alpha_factor",
        "mlp_beta_factor",
        "mlp_multipliers",
        "moe_shared_expert_overlap",
        "mtp_hybrid_override_pattern",
        "mtp_layers_block_type",
        "norm_reduction_force_float32",
        "num_logits_to_keep",
        "rescale_every",
        "rescale_layer",
        "rescale_prenorm_residual",
        "residual_in_fp32",
        "return_last_states",
        "sequence_kernel",
        "ssm_in_multiplier",
        "ssm_multipliers",
        "ssm_out_multiplier",
        "step_kernel",
        "time_step_floor",
        "time_step_init_scheme",
        "time_step_limit",
        "time_step_max",
        "time_step_min",
        "time_step_scale",
        "use_associative_scan",
        "use_mamba_kernels",
        "use_mambapy",
        "use_mem_eff_path",
        "w_init_variance_scale",
        "weight_mode",
        "z_loss_coefficient",
    ]
)
"""Keys without effect on parameters, cache or FLOPs: training, decoding, bookkeeping."""

HARMLESS_PARTS = ("dropout", "_pdrop", "layerdrop", "_token_id", "_token_index", "spec_augment")
HARMLESS_STARTS = (
    "_",
    "initializer_",
    "output_",
    "return_dict",
    "classif",
    "mask_time_",
    "mask_feature_",
    "summary_",
    "forced_",
    "pad_",
)


def harmless(key: str) -> bool:
    """Return whether a key has no effect on parameters, cache or FLOPs, whatever its value."""
    return key in HARMLESS or key.startswith(HARMLESS_STARTS) or any(part in key for part in HARMLESS_PARTS)


@dataclass
class Config:
    """A config.json being read.

    Attributes:
        values: what it says.
        source: file or name, for messages.
        family: model_type that it is read as.
        names: keys that this family calls otherwise (canonical name to its own).
        defaults: what the family takes where a key is missing.
        read: keys that were asked for. defaulted: keys that were missing, and what they took.
        scope: path of this object in the file ("text_config."). below: configs inside it that were read.
        notes: what the user should know of how it was read.
    """

    values: Mapping[str, Any]
    source: str
    family: str
    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    defaulted: dict[str, Any] = field(default_factory=dict)
    scope: str = ""
    below: list[Config] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def where(self, key: str) -> str:
        """Return file and field, as the file calls it."""
        return f"{self.source}, {self.scope}{self.spelling(key)}"

    def spelling(self, key: str) -> str:
        """Return the key as this config calls it."""
        own = self.names.get(key, key)
        return own if own in self.values or key not in self.values else key

    def null(self, key: str) -> bool:
        """Return whether the file says null."""
        own = self.spelling(key)
        return own in self.values and self.values[own] is None

    def raw(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a value as it stands, or the family's default, or `default`; null counts as missing where it may.

        Raises:
            PlanError: it has no value and no default, or two spellings of it disagree.
        """
        assert key in VOCABULARY, f"{key} is not in the vocabulary"
        own = self.names.get(key, key)
        names = dict.fromkeys((own, key, *SYNONYMS.get(key, ())))
        self.read.update(names)
        found = [name for name in names if self.values.get(name) is not None]
        for other in found[1:]:
            if self.values[other] != self.values[found[0]]:
                raise PlanError(
                    f"found {self.values[found[0]]!r}, but {other} says {self.values[other]!r}; both mean the same",
                    where=f"{self.source}, {self.scope}{found[0]}",
                    fix="remove one of them",
                )
        if found:
            return self.values[found[0]]
        fallback = self.defaults.get(key, None)
        null = self.null(key) and not (key in NULL_IS_MISSING and fallback is not None)
        if null and default is REQUIRED:
            raise PlanError("found null, a value is needed", where=self.where(key), fix=self._set_hint(key))
        if fallback is not None and not null:
            self.defaulted[self.spelling(key)] = fallback
            return fallback
        if default is REQUIRED:
            raise PlanError(
                f"missing, and the family {self.family!r} has no default for it",
                where=self.where(key),
                fix=self._set_hint(key),
            )
        return default

    def count(self, key: str, default: Any = REQUIRED, *, low: int = 1) -> Any:
        """Return a whole number of at least `low`, or the default."""
        value = self.raw(key, default)
        if value is default and default is not REQUIRED:
            return value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        high = MOST_LAYERS if VOCABULARY[key].holds == "layers" else LARGEST
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise PlanError(
                f"found {_shown(value)}, allowed are whole numbers from {low:,} to {high:,}",
                where=self.where(key),
                fix=self._set_hint(key),
            )
        return value

    def flag(self, key: str, default: Any = REQUIRED) -> bool:
        """Return true or false."""
        value = self.raw(key, default)
        if not isinstance(value, bool):
            raise PlanError(
                f"found {_shown(value)}, allowed are true and false", where=self.where(key), fix=self._set_hint(key)
            )
        return value

    def number(self, key: str, default: Any = REQUIRED, *, above: float = float("-inf")) -> Any:
        """Return a finite number above a bound, or the default."""
        value = self.raw(key, default)
        if value is default and default is not REQUIRED:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < float("inf"):
            bound = f" above {above:g}" if above > float("-inf") else ""
            raise PlanError(
                f"found {_shown(value)}, a number{bound} is needed", where=self.where(key), fix=self._set_hint(key)
            )
        return value

    def scaled(self, key: str, default: Any, by: int) -> int:
        """Return a width times the factor under a key, as a whole number of at least 1."""
        return int(self.widened(key, default, by))

    def widened(self, key: str, default: Any, by: int) -> float:
        """Return a width times the factor under a key, which must make at least 1."""
        found: float = self.number(key, default, above=0) * by
        if not 1 <= found <= LARGEST:
            raise PlanError(
                f"found {_shown(self.raw(key, default))}, which makes a width of {found:g}; allowed are 1 to {LARGEST:,}",
                where=self.where(key),
                fix=self._set_hint(key),
            )
        return found

    def entry(self, key: str, table: Mapping[str, Any], name: str, default: float = 0.0) -> float:
        """Return a finite number out of a table that stands under a key, `default` where it is missing or null."""
        value = table.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
            raise PlanError(
                f"found {_shown(value)}, a number is needed", where=f"{self.where(key)}.{name}", fix="correct the file"
            )
        return value

    def text(self, key: str, default: Any = REQUIRED, *, allowed: Sequence[str] = ()) -> Any:
        """Return a text, one of `allowed` where given."""
        value = self.raw(key, default)
        if value is default and default is not REQUIRED:
            return value
        if not isinstance(value, str) or (allowed and value not in allowed):
            choice = f"allowed are {', '.join(allowed)}" if allowed else "a text is needed"
            raise PlanError(f"found {_shown(value)}, {choice}", where=self.where(key), fix=self._set_hint(key))
        return value

    def table(self, key: str) -> dict[str, Any]:
        """Return an object; {} where missing."""
        value = self.raw(key, {})
        if not isinstance(value, Mapping):
            raise PlanError(
                f"found {_shown(value)}, an object is needed", where=self.where(key), fix=self._set_hint(key)
            )
        return dict(value)

    def per_layer(self, key: str, layers: int, allowed: Sequence[str]) -> list[str] | None:
        """Return a list with one of the allowed texts for each layer, or None where the key is missing."""
        value = self.raw(key, None)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != layers:
            size = f"{len(value)} entries" if isinstance(value, Sequence) else _shown(value)
            raise PlanError(
                f"found {size}, a list of {layers} is needed",
                where=self.where(key),
                fix="give one entry for each layer",
            )
        for index, entry in enumerate(value):
            if entry not in allowed:
                raise PlanError(
                    f"entry {index} is {_shown(entry)}, allowed are {', '.join(allowed)}",
                    where=self.where(key),
                    fix="the planner doesn't model other kinds of layer in this family",
                )
        return list(value)

    def texts(self, key: str, default: Sequence[str]) -> Sequence[str]:
        """Return a list of texts that isn't empty, or the default."""
        value = self.raw(key, default)
        if (
            isinstance(value, str)
            or not isinstance(value, Sequence)
            or not all(isinstance(each, str) for each in value)
        ):
            raise PlanError(
                f"found {_shown(value)}, a list of texts is needed", where=self.where(key), fix=self._set_hint(key)
            )
        return value or default

    def counts(self, key: str, length: int | None = None, *, low: int = 0) -> list[int] | None:
        """Return a list of whole numbers, with `length` entries where given; None where the key is missing or null."""
        value = self.raw(key, None)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != (length or len(value)):
            size = f"a list of {length}" if length else "a list of whole numbers"
            raise PlanError(f"found {_shown(value)}, {size} is needed", where=self.where(key), fix=self._set_hint(key))
        for index, entry in enumerate(value):
            if isinstance(entry, bool) or not isinstance(entry, int) or not low <= entry <= LARGEST:
                raise PlanError(
                    f"entry {index} is {_shown(entry)}, allowed are whole numbers from {low:,}",
                    where=self.where(key),
                    fix=self._set_hint(key),
                )
        return list(value)

    def heads(self, key: str, width: int) -> int:
        """Return a number of heads that divides a width."""
        heads: int = self.count(key)
        if width % heads:
            raise PlanError(
                f"found {heads}, which does not divide the width {width}",
                where=self.where(key),
                fix="allowed are its divisors",
            )
        return heads

    def nested(
        self,
        key: str | None,
        family: str,
        names: Mapping[str, str],
        defaults: Mapping[str, Any],
        instead: Mapping[str, Any] | None = None,
    ) -> Config:
        """Return a reader of an object inside this config.

        Args:
            key: where it stands; None: its keys stand among this config's own (Qwen2-VL's first configs).
            family: model_type that it is read as. names, defaults: of that family.
            instead: values that replace its own.

        Raises:
            PlanError: it is no object.
        """
        if key is None:
            inner = Config({**self.values, **(instead or {})}, self.source, family, names, defaults, self.read)
            inner.scope = self.scope
        else:
            self.read.add(key)
            given = self.values.get(key)
            if given is not None and not isinstance(given, Mapping):
                raise PlanError(
                    f"found {_shown(given)}, an object is needed", where=f"{self.source}, {self.scope}{key}",
                    fix="correct the file",
                )  # fmt: skip
            inner = Config({**(given or {}), **(instead or {})}, self.source, family, names, defaults)
            inner.scope = f"{self.scope}{key}."
        self.below.append(inner)
        return inner

    def readers(self) -> list[Config]:
        """Return this config and all that were read inside it."""
        return [self, *(each for inner in self.below for each in inner.readers())]

    def ignore(self, *keys: str) -> None:
        """Note that this family knows these keys, and that they have no effect on it."""
        for key in keys:
            self.read |= {self.names.get(key, key), key}

    def unread(self) -> list[str]:
        """Return the keys that nothing read and that may have an effect.

        Raises:
            PlanError: one of them changes sizes in another family, and its value is not without effect.
        """
        left = [key for key in self.values if key not in self.read]
        for key in left:
            known = VOCABULARY.get(key)
            value = self.values[key]
            if (
                known and known.structural and value and value not in known.inert
            ):  # whatever `harmless` makes of its name
                raise PlanError(
                    f"found {_shown(value)}, but the family {self.family!r} doesn't read this key, and it changes sizes "
                    "in others",
                    where=f"{self.source}, {self.scope}{key}",
                    fix=f"remove it, or set it to null if it has no effect (--set {self.scope}{key}=null), or choose another family with --assume",
                )
        found = [
            self.scope + key
            for key in left
            if not harmless(key)
            and self.values[key] not in (None, False, [], {}, "", *VOCABULARY.get(key, NOTHING).inert)
        ]
        inside = (inner.unread() for inner in self.below if inner.read is not self.read)
        return [*found, *(key for keys in inside for key in keys)]

    def _set_hint(self, key: str) -> str:
        return f"correct the file, or use --set {self.scope}{self.spelling(key)}=VALUE"


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
