"""Names clients may ask for."""

import pytest

from gateway.catalog import Catalog, Target
from gateway.errors import NotFound
from gateway.settings import ModelSettings

ALIASES = {"chat": "local/demo", "embed": "local/minilm"}
OFFERS = {"local": ["demo", "minilm"], "openai": []}


def test_the_aliases_chat_and_embed_always_exist() -> None:
    """The README's first request must work with no configuration."""
    catalog = Catalog({}, OFFERS, ALIASES)
    assert catalog.resolve("chat").targets == (Target("local", "demo"),)
    assert catalog.resolve("embed").targets == (Target("local", "minilm"),)


def test_a_configured_alias_wins_over_the_built_in_one() -> None:
    """An operator who routes `chat` elsewhere must be obeyed."""
    catalog = Catalog({"chat": ModelSettings.model_validate({"route": ["openai/gpt-5-mini"]})}, OFFERS, ALIASES)
    assert catalog.resolve("chat").targets == (Target("openai", "gpt-5-mini"),)


def test_provider_slash_model_always_works() -> None:
    """Any model of an open-ended provider can be named without configuring it."""
    assert Catalog({}, OFFERS, ALIASES).resolve("openai/gpt-5").targets == (Target("openai", "gpt-5"),)


def test_an_unknown_model_of_a_closed_provider_is_not_found() -> None:
    """The engine serves what it loaded; a typo must not reach it."""
    with pytest.raises(NotFound, match="local/demo"):
        Catalog({}, OFFERS, ALIASES).resolve("local/dmo")


def test_near_names_are_listed_and_long_names_are_not_echoed_whole() -> None:
    """A 100 KB model name must not come back in the error."""
    with pytest.raises(NotFound) as caught:
        Catalog({}, OFFERS, ALIASES).resolve("x" * 100_000)
    assert len(caught.value.message) < 1_000


def test_a_route_to_an_unknown_provider_is_refused_at_start() -> None:
    """A typo in nearhit.yaml must stop the start, not the first request."""
    with pytest.raises(ValueError, match="opnai"):
        Catalog({"smart": ModelSettings.model_validate({"route": ["opnai/gpt-5"]})}, OFFERS, ALIASES)


@pytest.mark.parametrize("text", ["gpt-5", "/gpt-5", "openai/", ""])
def test_a_route_must_name_provider_and_model(text: str) -> None:
    """`gpt-5` alone says nothing about where it is."""
    with pytest.raises(ValueError, match="provider"):
        Catalog({"smart": ModelSettings.model_validate({"route": [text]})}, OFFERS, ALIASES)
