"""What stands in nearhit.yaml, as YAML reads it."""

from pathlib import Path

from gateway.settings import load


def test_off_may_be_written_without_quotes(tmp_path: Path) -> None:
    """YAML takes a bare `off` for false, so the mode that our own messages name was refused as no mode at all."""
    config = tmp_path / "nearhit.yaml"
    config.write_text(
        "cache: {mode: off}\nledger: {durability: off}\nproviders: {lab: {kind: openai, api_key: none, batch: off}}\n"
    )
    found = load(config)
    assert (found.cache.mode, found.ledger.durability, found.providers["lab"].batch) == ("off", "off", "off")
