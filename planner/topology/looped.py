"""Models that run layers several times in a pass (HRM, Dory); attention with short convolutions (Inkling, Zaya)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.blocks import Attention, Block, Head, Leaf, MixtureOfExperts, Norm, Weights, linear, vector
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Layer, Run, runs
from planner.recurrent import Convolutions, ConvolvedAttention, Together
from planner.topology import Anatomy, Request
from planner.topology.attention import grouped, rope
from planner.topology.decoder import decoder


def two_speeds(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Return HRM's decoder: a slow stack runs `H_cycles` times, a fast one `L_cycles` times before each of them."""
    layers = c.count("num_layers_per_stack", None) or c.count("num_hidden_layers")
    slow, fast = c.count("H_cycles"), c.count("L_cycles")
    inner = c.nested(None, c.family, c.names, c.defaults, {"num_hidden_layers": layers})
    found = decoder(inner, request, **traits)
    (stack,) = found.stacks
    body = tuple(replace(run, repeats=times) for times in (slow * fast, slow) for run in stack.runs)
    start = Weights((vector("z_L_init", c.count("hidden_size"), "other"),))
    return found._replace(stacks=(replace(stack, front=(*stack.front, start), runs=body),))


def looped_middle(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Return Dory's decoder: the layers between the first and the last few run `n_recurrent_loops` times."""
    c = _without_feeds(c)
    first, last = c.count("n_input_layers", low=0), c.count("n_output_layers", low=0)
    loops = c.count("n_recurrent_loops")
    layers = c.count("num_hidden_layers")
    middle = c.count("n_recurrent_layers", layers - first - last)
    c.text("recurrent_kv_cache_mode", "per_loop", allowed=("per_loop",))
    if first + middle + last != layers:
        raise PlanError(
            f"found {first} + {middle} + {last} layers, but num_hidden_layers says {layers}",
            where=c.where("n_recurrent_layers"),
            fix="correct one of them",
        )
    found = decoder(c, request, **traits)
    (stack,) = found.stacks
    each: list[Layer] = [run.layer for run in stack.runs for _ in range(run.count)]
    body: list[Run] = [*runs(each[:first])]
    body += [replace(run, repeats=loops) for run in runs(each[first : first + middle])]
    body += runs(each[first + middle :])
    scale = Weights((vector("lm_head.logit_scale", c.count("vocab_size"), "head"),))
    return found._replace(stacks=(replace(stack, runs=tuple(body), back=(*stack.back, *(scale,) * request.head)),))


def _without_feeds(c: Config) -> Config:
    """Return a config whose layers are mixer and feed-forward block; saved ones of Dory count them apart."""
    listed = c.raw("layer_types", None)
    if not isinstance(listed, list) or "mlp" not in listed:
        return c
    halves = {key: c.count(key, low=0) // 2 for key in ("num_hidden_layers", "n_input_layers", "n_output_layers")}
    if middle := c.count("n_recurrent_layers", None):
        halves["n_recurrent_layers"] = middle // 2
    return c.nested(None, c.family, c.names, c.defaults, {**halves, "layer_types": listed[::2]})


def spans(c: Config, layers: int) -> list[str]:
    """Inkling: windows in the layers of `local_layer_ids`, else in five of six; or as `layer_types` lists them."""
    listed = c.per_layer("layer_types", layers, ("hybrid", "hybrid_sliding"))
    local = c.counts("local_layer_ids")
    held = [(i + 1) % 6 > 0 if local is None else i in local for i in range(layers)]
    return listed or ["hybrid_sliding" if has else "hybrid" for has in held]


def inkling_sparse(c: Config, layers: int) -> list[bool]:
    """Inkling: experts after the first `dense_mlp_idx` layers, or as `mlp_layer_types` lists them."""
    listed, first = c.per_layer("mlp_layer_types", layers, ("dense", "sparse")), c.count("dense_mlp_idx", 0, low=0)
    return [kind == "sparse" for kind in listed] if listed else [i >= first for i in range(layers)]


def smoothed_attention(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """Make Inkling's attention, with convolutions of keys, values, its output and the feed-forward block's."""
    width, taps = c.count("hidden_size"), c.count("sconv_kernel_size")
    kinds, sparse = spans(c, layers), inkling_sparse(c, layers)
    size, shared = c.count("sliding_window", None), c.count("n_shared_experts", 0, low=0)
    found: list[Block | None] = []
    for kind, has_experts in zip(kinds, sparse, strict=True):
        prefix = "swa_" if kind == "hybrid_sliding" else ""
        heads, head = c.count(f"{prefix}num_attention_heads"), c.count(f"{prefix}head_dim")
        groups = c.count(f"{prefix}num_key_value_heads")
        window = size if prefix else None
        reach = size if prefix else c.count("rel_extent")
        relative = (
            linear("r_proj", width, heads * c.count("d_rel"), "attention"),
            linear("rel_logits_proj", c.count("d_rel"), reach, "attention", rate=heads),
        )
        attention = Attention(
            width, heads, groups, head, Mask(window=window), qk_norm=Norm(head, epsilon=c.number("rms_norm_eps", 1e-6)),
            scale=1 / head, extra=relative,
        )  # fmt: skip
        names = ("self_attn.k_sconv", "self_attn.v_sconv")
        channels = (*((name, groups * head) for name in names), ("attn_sconv", width), ("mlp_sconv", width))
        smooth = Convolutions(channels, taps)
        extra = [
            vector(
                "mlp.gate.global_scale" if has_experts else "mlp.global_scale", 1, "router" if has_experts else "mlp"
            )
        ]
        if has_experts and shared:
            extra.append(linear("mlp.gate.shared", width, shared, "router", work="router"))
        found.append(Together((attention, smooth, Weights(tuple(extra)))))
    return found


def depth_attention(name: str, width: int, queries: int, states: int) -> Leaf:
    """Return what a row's attention over the states of earlier layers stores: its queries [Q, D].

    Each of the states is scored with every query, and mixed: two products of D and Q.
    """
    return linear(f"{name}.query", width, queries, "other", work="attention", rate=2 * states)


def smoothed_attention_2(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """Make Inkling 2's attention: gated, a sink per head, relative positions, inputs mixed from earlier layers.

    In layers without a window queries, keys and values have inputs of their own, and the taps of convolutions move.
    """
    width, taps, ranks = c.count("hidden_size"), c.count("sconv_kernel_size"), c.count("d_rel")
    step, size = c.count("n_layers_per_attn_res_block"), c.count("sliding_window")
    found: list[Block | None] = []
    for i, kind in enumerate(spans(c, layers)):
        window = size if kind == "hybrid_sliding" else None
        prefix = "swa_" if window else ""
        heads, head = c.count(f"{prefix}num_attention_heads"), c.count(f"{prefix}head_dim")
        groups = c.count(f"{prefix}num_key_value_heads")
        inputs = 1 if window else 3
        extra = (
            vector("q_proj.norm.scale", heads * head, "norm"),
            linear("sink_proj", width, heads, "attention"),
            linear("relative_position_bias.linear", width, heads * ranks, "attention"),
            vector("relative_position_bias.norm.scale", heads * ranks, "norm"),
            linear(
                "relative_position_bias.proj", ranks, size if window else c.count("rel_extent"), "attention", rate=heads
            ),
            *(vector(f"{of}_input_layernorm", width, "norm") for of in "kv" if not window),
        )
        attention = Attention(width, heads, groups, head, Mask(window=window), gate="element", extra=extra)
        kept = tuple((f"self_attn.{of}_proj.sconv", groups * head) for of in "kv")
        after = (("post_attention_convolution", width), ("post_mlp_convolution", width))
        smooth = Convolutions((*kept, *after), taps) if window else Convolutions(after, taps, kept, width, groups)
        mixed = [depth_attention("mlp_input", width, 1, i // step + 2)]
        if i:
            mixed.append(depth_attention("attention_input", width, inputs, (i - 1) // step + 2))
        found.append(Together((attention, smooth, Weights(tuple(mixed)))))
    return found


def mixed_depths(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Return Inkling 2's decoder: the last row is mixed from earlier ones, the head is smaller than the table."""
    found = decoder(c.nested(None, c.family, c.names, c.defaults, {"tie_word_embeddings": False}), request, **traits)
    (stack,) = found.stacks
    width, rows = c.count("hidden_size"), c.count("unpadded_vocab_size")
    blocks = (c.count("num_hidden_layers") - 1) // c.count("n_layers_per_attn_res_block") + 1
    mixed = Weights((depth_attention("final_input", width, 1, blocks + 1),))
    back = (replace(block, vocabulary=rows) if isinstance(block, Head) else block for block in stack.back)
    return found._replace(stacks=(replace(stack, back=(mixed, *back)),))


def late_values(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """Make Zaya's attention, and what scales the residual stream."""
    width, heads, head = c.count("hidden_size"), c.count("num_attention_heads"), c.count("head_dim")
    bias, size = c.flag("attention_bias", False), c.count("sliding_window", None)
    kinds = c.per_layer("layer_types", layers, ("hybrid", "hybrid_sliding")) or ["hybrid"] * layers
    scales = ("hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias")
    names = [f"post_{of}_residual_scale.{name}" for of in ("attention", "mlp") for name in scales]
    found: list[Block | None] = []
    for kind in kinds:
        if kind == "hybrid_sliding" and size is None:
            raise PlanError("missing or null, but layers use it", where=c.where("sliding_window"), fix="give it")
        window = size if kind == "hybrid_sliding" else None
        attention = Attention(
            width, heads, grouped(c, heads), head, Mask(window=window), bias, bias, bias, bias, rope=rope(c, head)
        )
        convolved = ConvolvedAttention(attention, c.count("cca_time0"), c.count("cca_time1"))
        found.append(Together((convolved, Weights(tuple(vector(name, width, "other") for name in names)))))
    return found


def remembering_router(c: Config, layer: int) -> tuple[Leaf, ...]:
    """Return Zaya's router: a small network, that also reads the router of the layer before; one more class skips."""
    width, hidden, classes = c.count("hidden_size"), c.count("router_hidden_size"), c.count("num_experts") + 1

    def product(name: str, n_in: int, n_out: int, *, bias: bool = True) -> Leaf:
        return linear(name, n_in, n_out, "router", bias=bias, work="router")

    return (
        product("gate.down_proj", width, hidden),
        *((vector("gate.router_states_scale", hidden, "router"),) if layer else ()),
        vector("gate.router_mlp.norm", hidden, "norm"),
        product("gate.router_mlp.fc1", hidden, hidden),
        product("gate.router_mlp.fc2", hidden, hidden),
        product("gate.router_mlp.out_proj", hidden, classes, bias=False),
        vector("gate.balancing_biases", classes, "router", buffer=True, own_dtype="float32"),
    )


def remembering_experts(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """Make Zaya's mixtures of experts."""
    if (k := c.count("num_experts_per_tok")) != 1:
        raise PlanError(f"found {k}, this family has one", where=c.where("num_experts_per_tok"), fix="set it to 1")
    one = MixtureOfExperts(c.count("hidden_size"), c.count("moe_intermediate_size"), c.count("num_experts"), k)
    return [replace(one, chooser=remembering_router(c, i)) for i in range(layers)]


def scaled_input(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Return Zaya's decoder: embeddings are scaled and shifted."""
    found = decoder(c, request, **traits)
    (stack,) = found.stacks
    names = ("input_hidden_states_scale", "input_hidden_states_bias")
    block = Weights(tuple(vector(name, c.count("hidden_size"), "other") for name in names))
    return found._replace(stacks=(replace(stack, front=(*stack.front, block)),))


def dense_and_moe_widths(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Return Inkling's decoder, whose head is never tied.

    Where `dense_intermediate_size` is given, `intermediate_size` is an expert's width.
    """
    values: dict[str, Any] = {"tie_word_embeddings": False}
    if (dense := c.count("dense_intermediate_size", None)) is not None:
        values |= {"moe_intermediate_size": c.count("intermediate_size"), "intermediate_size": dense}
    return decoder(c.nested(None, c.family, c.names, c.defaults, values), request, **traits)
