"""Helicone is set up by headers that every request carries: a file of such lines, one `Name: value` each.

Knows: which of them become settings, and that the others go on working as they are. Does not know: where it is written.
"""

import re
from urllib.parse import urlsplit

from gateway.moving import HOSTS, Moved, headers_of, key_of

_POLICY = re.compile(r"^(\d+);w=(\d+)(?:;u=(request|cents))?(?:;s=([\w-]+))?$")
_AGE = re.compile(r"max-age=(\d+)")
_WINDOWS = {86_400: "day", 604_800: "week", 2_592_000: "month"}
_MINUTE = 60


def moved(text: str) -> Moved:
    """Raises ValueError for a file without such a header."""
    found = Moved()
    headers = headers_of(text)
    if not any(name.startswith("helicone-") for name in headers):
        raise ValueError("there is no line such as `Helicone-Cache-Enabled: true` in it")
    base = headers.pop("helicone-openai-api-base", "")
    _provider(found, headers.pop("helicone-target-url", "") or base)
    enabled = headers.pop("helicone-cache-enabled", "false").lower() == "true"
    cache: dict[str, object] = {"mode": "exact" if enabled else "off"}
    if age := _AGE.search(headers.pop("cache-control", "")):
        cache["ttl"] = int(age[1])
    found.config["cache"] = cache
    if policy := headers.pop("helicone-ratelimit-policy", ""):
        _limit(found, policy)
    if headers.pop("helicone-fallbacks", ""):
        found.left.append("Helicone-Fallbacks: write the targets as the route of a model")
    for name in sorted(headers):
        if name.startswith("helicone-"):
            usual = _GOES_ON if name.startswith("helicone-property-") else "no counterpart"
            found.left.append(f"{name}: {_WHY.get(name, usual)}")
    return found


_GOES_ON = "goes on working as a header"
_BOUNDED = "retries are always on, bounded by a budget"
_WHY = {
    "helicone-auth": "not needed: requests carry a key of nearhit",
    "helicone-user-id": _GOES_ON,
    "helicone-session-id": _GOES_ON,
    "helicone-retry-enabled": _BOUNDED,
    "helicone-retry-num": _BOUNDED,
    "helicone-retry-factor": _BOUNDED,
    "helicone-retry-min-timeout": _BOUNDED,
    "helicone-retry-max-timeout": _BOUNDED,
    "helicone-cache-bucket-max-size": "one kept answer for each question",
    "helicone-cache-seed": "a request with it is not cached; use projects of their own instead",
}


def _provider(found: Moved, target: str) -> None:
    """Who answers: whom the headers name, else OpenAI."""
    kind = HOSTS.get(urlsplit(target).hostname or "api.openai.com")
    if kind is not None:
        found.provider(kind, api_key=key_of(kind))
        return
    found.provider("openai", base_url=target.rstrip("/"), api_key="${UPSTREAM_API_KEY}")
    found.left.append(f"helicone-target-url: {target} is taken for a server like OpenAI's; add /v1 if it wants that")


def _limit(found: Moved, policy: str) -> None:
    """A quota over a window: money becomes a budget, requests a limit per minute."""
    read = _POLICY.match(policy)
    if read is None:
        found.left.append(f"Helicone-RateLimit-Policy {policy!r}: not understood")
        return
    quota, seconds, unit, segment = int(read[1]), int(read[2]), read[3] or "request", read[4]
    if segment:
        found.left.append(f"Helicone-RateLimit-Policy: its segment {segment!r}; the limit is everyone's together")
    if unit == "request":
        found.config["budgets"] = [{"scope": "org", "rpm": max(1, quota * _MINUTE // max(1, seconds))}]
        return
    window = _WINDOWS.get(seconds)
    if window is None:
        found.left.append(f"Helicone-RateLimit-Policy: a window of {seconds} s; a calendar day instead")
    found.config["budgets"] = [{"scope": "org", "limit_usd": f"{quota / 100:.2f}", "window": window or "day"}]
