"""What a model's own `generation_config.json` says about answering, for whatever a request leaves open.

Does not know who asks: a request names the fields it left open, everything it did say stands. `eos_token_id` is read
with the tokenizer.
"""

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import replace

from engine.api import DRAWN, SamplingParams
from engine.locate import ModelNotFound
from engine.tokenizer import read_object

# Fields of SamplingParams that the file may hold, by the same names.
_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class GenerationConfig(Struct, frozen=True, kw_only=True):
    """Hugging Face's fields, as they came; None: the file does not say. `do_sample` False: take the likeliest token.

    `max_new_tokens`: what an answer is meant to have at most.
    """

    do_sample: bool | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    max_new_tokens: Annotated[int, Meta(gt=0)] | None = None

    def filled(self, sampling: SamplingParams, left: frozenset[str]) -> SamplingParams:
        """`sampling` with what this says for the names in `left`.

        A model that is not to be drawn from is answered greedily only where `left` holds all of `DRAWN`: who names one
        of them means the usual temperature of 1 beside it.
        """
        said = {name: value for name in _FIELDS if name in left and (value := getattr(self, name)) is not None}
        if self.do_sample is False and left >= DRAWN:
            said["temperature"] = 0.0
        return replace(sampling, **said) if said else sampling


def load_generation_config(folder: Path) -> GenerationConfig:
    """Empty when the folder has no such file. Raises ModelNotFound when a field is not what it must be."""
    file = folder / "generation_config.json"
    try:
        return convert(read_object(file), GenerationConfig)
    except ValidationError as error:
        raise ModelNotFound(f"{file}: {error}") from error
