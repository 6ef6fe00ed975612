"""From a model's name to where its parts lie.

Knows: `demo` (the folder in this package), `tiny-random:FAMILY[?seed=N]` (made in memory), a Hugging Face folder.
Does not know: a hub or any network; torch; how files are read.
"""

from pathlib import Path

from msgspec import Struct

from engine.api import EngineError
from engine.options import BY_TEXT

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma2", "gemma3", "phi3")
_TINY = "tiny-random:"
_READ = (".json", ".safetensors", ".jinja")
_DEMO = Path(__file__).parent / "demo"


class ModelNotFound(EngineError):
    """No such model here. The message says what was looked for."""


class ModelSource(Struct, frozen=True, kw_only=True):
    """Either `folder` holds a Hugging Face model, or `family` and `seed` say which random one to make."""

    name: str
    folder: Path | None = None
    family: str = ""
    seed: int = 0

    @property
    def note(self) -> str:
        """What a reader of this model's answers must know."""
        return "" if self.folder is not None else "random weights: the output is noise"


def locate(model: str) -> ModelSource:
    """Raises ModelNotFound."""
    if model.startswith(_TINY):
        return _tiny(model)
    folder = _DEMO if model == "demo" else Path(model).expanduser()
    for needed in ("config.json", "tokenizer.json"):
        if not (folder / needed).is_file():
            known = "demo, " + ", ".join(_TINY + family for family in FAMILIES)
            raise ModelNotFound(
                f"Model {model!r}: {folder / needed} is missing. Give a model folder or one of: {known}."
            )
    return ModelSource(name=model if model == "demo" else folder.name, folder=folder)


def locate_draft(speculate: str) -> ModelSource | None:
    """The model that guesses; None where none does. Raises ModelNotFound."""
    if speculate in BY_TEXT:
        return None
    try:
        return locate(speculate)
    except ModelNotFound as error:
        raise ModelNotFound(f"speculate is one of {', '.join(BY_TEXT)}, or a model. {error}") from None


def _tiny(model: str) -> ModelSource:
    family, _, query = model.removeprefix(_TINY).partition("?")
    if family not in FAMILIES:
        raise ModelNotFound(f"Unknown family {family!r}. Known: {', '.join(FAMILIES)}.")
    seed = query.removeprefix("seed=") or "0"
    if (query and not query.startswith("seed=")) or not seed.isdecimal():
        raise ModelNotFound(f"Model {model!r}: only ?seed=NUMBER may follow the family.")
    return ModelSource(name=model, family=family, seed=int(seed))


def standing(model: str) -> dict[str, tuple[int, int]]:
    """Size in bytes and time of the last change in ns of each of a model's files: what is exchanged shows in it.

    {} for one that is made in memory. Raises ModelNotFound, OSError.
    """
    folder = locate(model).folder
    files = [] if folder is None else [path for path in folder.iterdir() if path.suffix in _READ and path.is_file()]
    return {path.name: (found.st_size, found.st_mtime_ns) for path in files if (found := path.stat())}
