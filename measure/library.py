"""The transformers library's own model of a config, where the library is installed: a second opinion, never the source."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from planner.errors import PlanError

FOREIGN = frozenset({"palm", "transformer"})
"""Families without a class in transformers."""


def missing(family: str) -> str:
    """Return why the library can't build a family, or an empty text."""
    if find_spec("transformers") is None:
        return "transformers is not installed"
    return f"transformers has no class for {family}" if family in FOREIGN else ""


def build(
    config: Mapping[str, Any], architecture: str, *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> nn.Module:
    """Return the library's model of a config, in evaluation mode: plain attention, experts as batched matrix products.

    Raises:
        PlanError: the library has no such class, or objects to the config.
    """
    import transformers  # noqa: PLC0415

    bare = {key: value for key, value in config.items() if key != "quantization_config"} | {"use_cache": True}
    try:
        with torch.device(device), _quiet():
            parsed = transformers.AutoConfig.for_model(**bare)
            if (getattr(parsed, "pad_token_id", None) or 0) >= parsed.vocab_size:
                parsed.pad_token_id = 0  # the class's default lies outside a small vocabulary, and torch refuses that
            kind = getattr(transformers, architecture)
            model = kind._from_config(parsed, dtype=dtype, attn_implementation="eager")  # noqa: SLF001
    except Exception as error:  # its classes raise errors of many kinds
        raise PlanError(
            f"transformers can't build it: {type(error).__name__}: {' '.join(str(error).split())[:150]}",
            where=architecture,
        ) from error
    if model._can_set_experts_implementation():  # noqa: SLF001
        model.set_experts_implementation("batched_mm")
    return model.eval()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library's remarks on token ids and the like to itself."""
    from transformers.utils import logging  # noqa: PLC0415

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.set_verbosity(level)


def randomize(model: nn.Module, seed: int = 0) -> None:
    """Give every tensor random values, biases and scales too, so that a mixed-up pair shows in the logits."""
    generator = torch.Generator(next(model.parameters()).device).manual_seed(seed)
    stored = set(model.state_dict())
    tensors = (*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if n in stored))
    with torch.no_grad():
        for _, tensor in tensors:
            drawn = torch.randn(tensor.shape, generator=generator, device=tensor.device)
            tensor.copy_(tensor + 0.1 * drawn if tensor.dim() == 1 else drawn * tensor.shape[-1] ** -0.5)


def inputs_of(model: nn.Module, tokens_bt: Tensor, source: Tensor | None) -> dict[str, Tensor]:
    """Return the library's names for tokens, and for a source of ids or of audio features."""
    if source is None:
        return {"input_ids": tokens_bt}
    return {model.main_input_name: source, "decoder_input_ids": tokens_bt}


def logits(model: nn.Module, tokens_bt: Tensor, source: Tensor | None) -> Tensor:
    """Return the logits [b, t, v] of a plain forward pass; rows [b, t, d] of a model without a head."""
    output = model(**inputs_of(model, tokens_bt, source), use_cache=False)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def step_inputs(output: Any, token_b1: Tensor) -> dict[str, Any]:
    """Return the inputs of one more token after a pass that returned `output`."""
    from transformers.modeling_outputs import MoEModelOutput  # noqa: PLC0415

    encoded = getattr(output, "encoder_last_hidden_state", None)
    if encoded is None:
        return {"input_ids": token_b1, "past_key_values": output.past_key_values}
    memory = MoEModelOutput(last_hidden_state=encoded)
    return {"encoder_outputs": memory, "decoder_input_ids": token_b1, "past_key_values": output.past_key_values}
