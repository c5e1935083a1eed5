"""hf:ORG/NAME: a config.json fetched from the Hugging Face hub (needs planformer[hub] and a network)."""

from __future__ import annotations

from pathlib import Path

from planner.errors import PlanError

PREFIX = "hf:"


def fetch(name: str) -> Path:
    """Return the local path of a hub model's config.json, or of its params.json.

    Raises:
        PlanError: huggingface_hub isn't installed, or the hub hasn't it, or doesn't let us read it.
    """
    where = f"--config {PREFIX}{name}"
    try:
        from huggingface_hub import hf_hub_download  # noqa: PLC0415
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise PlanError("huggingface_hub is not installed", where=where, fix="pip install 'planformer[hub]'") from error
    found: Exception | None = None
    for file in ("config.json", "params.json"):
        try:
            return Path(hf_hub_download(name, file))
        except EntryNotFoundError as error:
            found = error
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise PlanError(
                f"can't be fetched: {reason}",
                where=where,
                fix="check the name and the network, or download the config.json",
            ) from error
    raise PlanError("has neither config.json nor params.json", where=where, fix="name another model") from found
