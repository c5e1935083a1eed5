"""Where the reference counts otherwise than the planner on purpose, and why: one table for the ledger and all tests."""

from __future__ import annotations

from planner.model import Model

SCAN = "the library's scan is padded or elementwise; the planner counts the sequential recurrence"
"""Models with a recurrence: all other work is equal to the integer (tests/test_recurrent.py has the scan by hand)."""

SAMPLES = "the number of samples that make 512 positions isn't unique; the planner takes the fewest"

FLOPS = {
    "blt": "where patches end depends on the data; the planner counts each byte as a patch of its own, an upper bound",
    "cohere_asr": "the reference projects the encoder's output again in every decode step",
    "speech-encoder-decoder": SAMPLES,
    "diffusion_gemma": "the reference also refines a block of random tokens in each forward",
    "dory": "the reference's step reads a cache of that step's token alone",
    "led": "the reference multiplies overlapping chunks of keys",
    "longcat_flash": "how many choices fall on experts without weights depends on the data; the planner counts the expected share",
    "longformer": "the reference pads to chunks of twice the window and multiplies these; the planner counts the mask's pairs",
    "longt5": "the reference multiplies blocks of three times 128 keys",
    "moonshine": SAMPLES,
    "mra": "the reference returns zeros without its CUDA kernel, and multiplies nothing",
    "nllb-moe": "the reference's routing depends on the data, and its mask is one-hot encoded twice",
    "pegasus_x": "the reference pads staggered blocks of keys",
    "prophetnet": "the reference multiplies a product over one row elementwise",
    "switch_transformers": "the reference's routing depends on the data, and drops tokens beyond an expert's room",
    "zaya": "the reference projects one further row of zeros in each layer",
}
"""Families whose FLOPs the reference counts otherwise."""

CACHES = {
    "dory": "the record's cache after a step holds that step's token alone",
    "recurrent_gemma": "the library keeps its caches in its layers; a record lists at most the recurrent states",
    "reformer": "the library keeps numbers of buckets in 8 bytes, and none for a prompt of at most one chunk",
    "xlstm": "the library's cache object also holds a counter of tokens, 2 bytes",
}
"""Families whose cache the reference's record doesn't have whole."""

LAYERS = {
    "funnel": "the reference lists blocks of several layers",
    "perceiver": "the reference lists its repeated layers only, not the cross-attentions around them",
}
"""Families whose layers the reference lists otherwise; totals are equal."""


def reason(model: Model, quantity: str) -> str:
    """Return why a quantity ("FLOPs", "cache", "layers") of a model may differ from the reference; "" where it may not."""
    if quantity == "FLOPs" and any(core.work == "scan" for stack in model.stacks for core in stack.cores):
        return SCAN
    return {"FLOPs": FLOPS, "cache": CACHES, "layers": LAYERS}.get(quantity, {}).get(model.family, "")
