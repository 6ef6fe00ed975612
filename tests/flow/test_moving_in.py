"""Clients of other gateways change the base URL and nothing else."""

from pathlib import Path

import pytest

from tests.live import live, settings

MIRRORED = {"server": {"mirror_headers": ["litellm", "helicone", "portkey", "cloudflare"]}}


async def test_their_headers_attribute_and_restrict(tmp_path: Path) -> None:
    """Tags, users and sessions of four dialects become ours; what they switch off is off."""
    async with live(settings(tmp_path)) as gateway:
        sent = {
            "x-litellm-tags": "batch,team:blue",
            "helicone-property-feature": "faq",
            "x-portkey-metadata": '{"_user": "ann", "env": "prod"}',
            "cf-aig-metadata": '{"release": 7}',
            "x-nearhit-tags": "env=ours",
        }
        assert (await gateway.chat(headers=sent)).status == 200
        (row,) = await gateway.rows()
        assert row["user"] == "ann"
        tags = row["tags"]
        for pair in ('"batch"', '"blue"', '"faq"', '"ours"', '"7"'):
            assert pair in str(tags).replace("'", '"')
        assert "prod" not in str(tags)


@pytest.mark.parametrize(
    "header",
    [
        {"helicone-cache-enabled": "false"},
        {"cf-aig-skip-cache": "true"},
        {"x-portkey-cache-namespace": "mine"},
        {"x-portkey-cache-force-refresh": "True"},
    ],
)
async def test_what_they_keep_out_of_the_cache_is_kept_out(tmp_path: Path, header: dict[str, str]) -> None:
    """An answer from the cache for somebody who forbade it is a wrong answer."""
    async with live(settings(tmp_path)) as gateway:
        await gateway.chat()
        assert (await gateway.chat()).headers["x-nearhit-cache"] == "hit-exact"
        assert (await gateway.chat(headers=header)).headers["x-nearhit-cache"] in ("bypass", "refresh")


async def test_their_reply_headers_come_where_they_are_switched_on(tmp_path: Path) -> None:
    """Dashboards read cost and cache by those names; without the switch nothing of them is sent."""
    async with live(settings(tmp_path / "on", **MIRRORED)) as gateway:
        told = await gateway.chat()
        assert float(told.headers["x-litellm-response-cost"]) > 0
        assert told.headers["helicone-cache"] == told.headers["cf-aig-cache-status"] == "MISS"
        told = await gateway.chat()
        assert told.headers["x-litellm-response-cost"] == "0"
        assert told.headers["x-portkey-cache-status"] == "HIT"
        assert told.headers["helicone-cache"] == "HIT"
    async with live(settings(tmp_path / "off")) as gateway:
        told = await gateway.chat()
        assert not {name for name in told.headers if name.startswith(("x-litellm", "helicone", "x-portkey", "cf-aig"))}


async def test_headers_that_make_no_sense_are_left_alone(tmp_path: Path) -> None:
    """They were written for another gateway: a mistake in them is none in a request to this one."""
    sent = {"x-portkey-metadata": "{not json", "cf-aig-cache-ttl": "soon", "x-litellm-timeout": "-3"}
    async with live(settings(tmp_path)) as gateway:
        assert (await gateway.chat(headers=sent)).status == 200
