"""What one forward pass is asked to do: how many sequences, how many new tokens, on top of how many cached ones.

Letters: B sequences (batch), P prompt tokens, G generated tokens, S source positions of an encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from planner.count import Number, least, triangle
from planner.errors import PlanError

if TYPE_CHECKING:
    from planner.model import Model

Feed = Literal["new", "last", "sequence", "memory", "latent", "global", "global_keys", "merged", "seeing"]
"""Whose rows visit a weight: see `Pass.rows`."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One phase of work of one stack, over `batch` sequences.

    Attributes:
        phase: "prefill": one pass over `new` tokens. "decode": `new` single-token steps on a cache, the first on top of
            `past` tokens. "recompute": `new` passes without a cache, over past + 1, ..., past + new tokens.
        new: tokens (prefill) or steps (decode, recompute).
        past: tokens before the first new one.
        memory: encoder positions that a cross-attention reads.
        prefix: first tokens of each sequence that see each other both ways (prefix LM).
        global_tokens: tokens that see, and are seen by, all others (Longformer).
        merged: rows of one sequence that leave a tower, after neighbours have been merged.
    """

    batch: Number
    new: Number
    past: Number = 0
    phase: Literal["prefill", "decode", "recompute"] = "prefill"
    memory: Number = 0
    prefix: Number = 0
    global_tokens: Number = 0
    merged: Number = 0

    @property
    def recompute(self) -> bool:
        """Whether every step starts from nothing."""
        return self.phase == "recompute"

    def rows(self, feed: Feed, *, dense: bool = False, expand: bool = False) -> Number:
        """Return the rows of a matrix product fed by this stream, over all sequences.

        Args:
            feed: "new" every token that the pass works on; "last" only those whose next token is asked for; "sequence" one a sequence (poolers); "memory" the
                encoder's output, once per pass that has no cross-attention cache yet; "latent" what a latent cache is
                expanded for; "global" Longformer's global tokens; "global_keys" all tokens, where there are global ones.
            dense: count the output head on every position, as a tracer of the plain forward pass does.
            expand: whether a decode step expands all cached latents again (transformers) or works on them (absorbed).
        """
        tokens = self.new if not self.recompute else triangle(self.past + self.new) - triangle(self.past)
        match feed:
            case "last" if not dense:
                return self.batch * (least(self.new, 1) if self.phase == "prefill" else self.new)
            case "sequence":
                return self.batch * least(self.new, 1)
            case "memory":
                passes = {"prefill": 1, "decode": 0, "recompute": self.new}[self.phase]
                return self.batch * self.memory * passes
            case "latent" if expand and self.phase == "decode":
                return self.batch * (self.new * self.past + triangle(self.new))
            case "seeing":
                return self.batch * tokens * (self.memory > 0)
            case "merged":
                return self.batch * self.merged
            case "global":
                return self.batch * self.global_tokens
            case "global_keys":
                return self.batch * tokens * (self.global_tokens > 0)
        return self.batch * tokens


class Workload(NamedTuple):
    """What is asked of the model, after defaults.

    Attributes:
        batch: B sequences. prompt: P tokens prefilled. generate: G tokens generated after it.
        source: S positions entering the encoder, 0 where there is none.
        prefix: K first tokens that see each other both ways.
        global_tokens: Longformer's.
        capacity_factor: Switch's room per expert, times an even share; None: nothing is dropped.
        images: N images of each sequence, image_rows: patches of one, image_tokens: of the prompt that one stands for.
        audio_seconds: of sound of each sequence, in audio_windows of audio_rows each, that stand for audio_tokens.
    """

    batch: int
    prompt: int
    generate: int
    source: int = 0
    prefix: int = 0
    global_tokens: int = 0
    capacity_factor: float | None = None
    images: int = 0
    image_rows: int = 0
    image_tokens: int = 0
    audio_seconds: float = 0
    audio_windows: int = 0
    audio_rows: int = 0
    audio_tokens: int = 0

    @property
    def context(self) -> int:
        """Rows reserved in the cache of one sequence, the last token's included."""
        return self.prompt + self.generate

    def prefill(self, stack: str) -> Pass:
        """Return a stack's share of the pass over the prompts."""
        if stack == "vision":
            return Pass(self.batch * self.images, self.image_rows, merged=self.image_tokens)
        if stack == "audio":
            windows = max(self.audio_windows, 1)
            return Pass(self.batch * self.audio_windows, self.audio_rows, merged=self.audio_tokens // windows)
        if stack == "encoder":
            return Pass(self.batch, self.source or self.prompt, global_tokens=self.global_tokens)
        return Pass(self.batch, self.prompt, memory=self.source, prefix=self.prefix)

    def decode(self) -> Pass:
        """Return one step of every sequence with P tokens in the cache."""
        return Pass(self.batch, 1, self.prompt, "decode", self.source)


DEFAULT_PROMPT, DEFAULT_GENERATE = 1024, 256
"""Tokens, where the model has room for them."""


def workload(
    model: Model,
    *,
    batch: int = 1,
    prompt: int | None = None,
    generate: int | None = None,
    source: int | None = None,
    prefix: int = 0,
    global_tokens: int = 0,
    capacity_factor: float | None = None,
    images: int = 0,
    audio_seconds: float = 0,
) -> tuple[Workload, list[str]]:
    """Return the workload with defaults that fit the model, and notes on what exceeds it.

    Raises:
        PlanError: it is impossible for this model.
    """
    two = model.kind == "encoder-decoder"
    started = model.engine.longest_tokens
    room = min((most for most in (model.positions, started) if most is not None), default=None)
    if source is not None and not two:
        raise PlanError(
            f"{model.family} has no encoder beside a decoder", where="--source", fix="leave it out; use --prompt"
        )
    if generate and not model.generates:
        raise PlanError(f"{model.family} is an encoder and generates nothing", where="--generate", fix="leave it out")
    if generate is None:
        spare = DEFAULT_GENERATE if room is None else min(DEFAULT_GENERATE, room // 4)
        generate = spare if model.generates else 0
    seen, said = _senses(model, images, audio_seconds)
    added = images * seen["image_tokens"] + seen["audio_tokens"]
    if prompt is None:
        spare = DEFAULT_PROMPT if room is None else min(DEFAULT_PROMPT, max(room - generate, 1))
        prompt = 1 if two else spare
    if two and source is None:
        most = model.source_positions
        source = most if model.source_fixed and most else min(DEFAULT_PROMPT, most or DEFAULT_PROMPT)
    if two:
        source = (source or 0) + added
    else:
        prompt += added
    if not model.generates and prompt == 0:
        raise PlanError("found 0, an encoder needs at least 1", where="--prompt")
    learned = model.learned_positions if model.source_learned is None else model.source_learned
    notes = [
        note
        for note in (
            _room(prompt + generate, model.positions, model.learned_positions, "--prompt and --generate", model),
            _room(source or 0, model.source_positions, learned, "--source", model),
        )
        if note
    ]
    if started is not None and prompt + generate > started:
        raise PlanError(
            f"found {prompt + generate:,} tokens, but {model.engine.name} is started for requests of at most {started:,}",
            where="--prompt and --generate", fix="lower them, or raise that with --engine-set",
        )  # fmt: skip
    if prefix and model.kind != "decoder":
        raise PlanError(f"{model.family} is no decoder-only model", where="--prefix", fix="leave it out")
    if prefix > prompt:
        raise PlanError(
            f"found {prefix}, allowed are 0 to {prompt}, the prompt's tokens",
            where="--prefix",
            fix="raise --prompt or lower it",
        )
    length = source or prompt
    if global_tokens and not model.has_global_tokens:
        raise PlanError(f"{model.family} has no global tokens to choose", where="--global-tokens", fix="leave it out")
    if global_tokens > length:
        raise PlanError(f"found {global_tokens}, allowed are 0 to {length}", where="--global-tokens")
    if capacity_factor is not None and not model.drops_tokens:
        raise PlanError(f"{model.family} drops no tokens", where="--capacity-factor", fix="leave it out")
    work = Workload(
        batch, prompt, generate, source or 0, prefix, global_tokens, capacity_factor, images,
        audio_seconds=audio_seconds, **seen,
    )  # fmt: skip
    return work, [*said, *notes]


def smallest(model: Model) -> Workload:
    """Return the workload with one token of one sequence, where weights alone are asked for; an encoder has its default."""
    found, _ = workload(model, prompt=1, generate=0) if model.generates else workload(model)
    return found


def _senses(model: Model, images: int, audio_seconds: float) -> tuple[dict[str, int], list[str]]:
    """Return the rows and tokens of images and sound, and notes on the tokens that they add to the prompt.

    Raises:
        PlanError: the model takes none, or its config doesn't say how many tokens they become.
    """
    found = dict(image_rows=0, image_tokens=0, audio_windows=0, audio_rows=0, audio_tokens=0)
    notes: list[str] = []
    known = {each.stack: each for each in model.inputs}
    for stack, amount, option, name in (
        ("vision", images, "--images", "images"), ("audio", audio_seconds, "--audio-seconds", "sound"),
    ):  # fmt: skip
        if not amount:
            continue
        if stack not in known:
            raise PlanError(f"{model.family} takes no {name}", where=option, fix="leave it out")
        one = known[stack]
        if one.rows is None or one.tokens is None:
            raise PlanError(
                f"the config doesn't determine how many tokens {name} become: {one.lacking} isn't in it",
                where=option,
                fix="leave it out, and count their tokens in --prompt; the tower's own work is then left out",
            )
        if stack == "vision":
            found |= dict(image_rows=one.rows, image_tokens=one.tokens)
            notes.append(f"{images} image(s) of {one.rows:,} patches add {images * one.tokens:,} tokens to each prompt")
        else:
            windows = -(-int(audio_seconds * 100) // (one.seconds * 100))
            tokens = windows * one.tokens
            found |= dict(audio_windows=windows, audio_rows=one.rows, audio_tokens=tokens)
            notes.append(
                f"{audio_seconds:g} s of sound, padded to {windows} window(s) of {one.seconds} s, add {tokens:,} tokens to each prompt"
            )
    return found, notes


def _room(length: int, positions: int | None, fixed: bool, option: str, model: Model) -> str | None:
    """Return a note on a length beyond the model's positions; refuse it where a learned table has no more rows."""
    if positions is None or length <= positions:
        return None
    if fixed:
        raise PlanError(
            f"found {length:,} positions, but {model.name} has a learned table of {positions:,}",
            where=option,
            fix=f"stay within {positions:,}",
        )
    return f"{option} make {length:,} positions, the config says {positions:,}; quality beyond that is not the planner's to say"
