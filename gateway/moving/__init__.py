"""From another gateway's configuration to a nearhit.yaml, and a list of what could not be moved.

Knows: what both have in common once it is read: upstreams, names, what was left behind. Does not know: any other
gateway's format (a file each), where anything is written.
"""

import itertools
import re
from typing import Any, cast
from urllib.parse import urlsplit

import yaml
from msgspec import Struct, field

from gateway.transport.credential import is_loopback

KINDS = {
    "openai": "openai",
    "text-completion-openai": "openai",
    "custom_openai": "openai",
    "openai_like": "openai",
    "azure": "azure",
    "azure_text": "azure",
    "azure-openai": "azure",
    "anthropic": "anthropic",
    "gemini": "gemini",
    "google": "gemini",
    "bedrock": "bedrock",
    "mistral": "mistral",
    "mistral-ai": "mistral",
    "groq": "groq",
    "deepseek": "deepseek",
    "together_ai": "together",
    "together-ai": "together",
    "fireworks_ai": "fireworks",
    "fireworks-ai": "fireworks",
    "openrouter": "openrouter",
    "xai": "xai",
    "x-ai": "xai",
    "hosted_vllm": "vllm",
    "vllm": "vllm",
    "ollama": "ollama",
    "ollama_chat": "ollama",
    "lm_studio": "lmstudio",
}
_KEYS = {
    "together": "TOGETHER_API_KEY",
    "bedrock": "AWS_BEARER_TOKEN_BEDROCK",
    "azure": "AZURE_OPENAI_API_KEY",
}
LOCAL = ("vllm", "ollama", "lmstudio")
HOSTS = {  # of services, with their kinds
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "gemini",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "api.deepseek.com": "deepseek",
    "api.together.xyz": "together",
    "api.fireworks.ai": "fireworks",
    "openrouter.ai": "openrouter",
    "api.x.ai": "xai",
}
_HEADER = re.compile(r"""^\s*(?:-H\s+)?["']?([A-Za-z0-9-]+)["']?\s*:\s*(.*?)\s*\\?$""")


class Moved(Struct):
    """`config`: what nearhit.yaml is to hold. `left`: what was not moved, a sentence each.

    `taken`: names in the environment that mean something already; `secrets`: the name of each key in plain text.
    """

    config: dict[str, Any] = field(default_factory=dict[str, Any])
    left: list[str] = field(default_factory=list[str])
    taken: set[str] = field(default_factory=set[str])
    secrets: dict[str, str] = field(default_factory=dict[str, str])

    def say(self, sentence: str) -> None:
        """Once."""
        if sentence not in self.left:
            self.left.append(sentence)

    def secret(self, value: str, usual: str) -> str:
        """A name in the environment for what stands there in plain text: the `usual` one, numbered where there are
        several.
        """
        if value not in self.secrets:
            names = (usual if number == 1 else f"{usual}_{number}" for number in itertools.count(1))
            self.secrets[value] = name = next(name for name in names if name not in self.taken)
            self.taken.add(name)
        return self.secrets[value]

    def provider(self, kind: str, *, called: str = "", **settings: Any) -> str:
        """The name of an upstream of that kind with these settings; one that is there already is used again.

        `called`: what clients call it, where that is not its kind; numbered where another has that name.
        """
        wanted = {"kind": kind, **{name: value for name, value in settings.items() if value is not None}}
        base = str(wanted.get("base_url") or "")
        if base.startswith("http://") and wanted.get("api_key") not in (None, "none"):
            host = urlsplit(base).hostname or ""
            if not is_loopback(host):
                wanted["plain_http"] = True
                self.say(f"the key for {host} crosses the network unencrypted, as it did (plain_http)")
        providers = cast("dict[str, dict[str, Any]]", self.config.setdefault("providers", {}))
        for name, there in providers.items():
            same = {key: value for key, value in there.items() if key != "deployments"} == wanted
            if same and (not called or name == called or name.startswith(f"{called}-")):
                return name
        numbers = itertools.count(2)
        name = usual = called or kind
        while name in providers:
            name = f"{usual}-{next(numbers)}"
        providers[name] = wanted
        return name

    def deployed(self, provider: str, model: str, deployment: str) -> bool:
        """Note which deployment of an upstream a model is; whether that is the only one that this model has there."""
        known = cast("dict[str, str]", self.config["providers"][provider].setdefault("deployments", {}))
        return known.setdefault(model, deployment) == deployment

    def written(self, source: str) -> str:
        """The file, beginning with what is still to be done by hand."""
        lines = [f"# nearhit.yaml, from {source}. Check it with: nearhit config check"]
        if self.left:
            lines += ["#", "# Not moved:", *(f"# - {sentence}" for sentence in self.left)]
        body = yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
        return "\n".join(lines) + "\n\n" + body


def target_of(entry: Any) -> str:
    """Of a place of a route, however it is written."""
    return str(cast("dict[str, Any]", entry)["to"]) if isinstance(entry, dict) else str(entry)


def each_once(route: list[Any]) -> list[Any]:
    """As a route wants it: no place twice. Shares of the same place add up, one that is not written is 1."""
    shares: dict[str, list[Any]] = {}
    for entry in route:
        shares.setdefault(target_of(entry), []).append(entry)
    several = len(shares) > 1
    return [
        {"to": target, "weight": round(sum(_share(entry) for entry in same), 6)}
        if len(same) > 1 and several
        else same[0]
        for target, same in shares.items()
    ]


def _share(entry: Any) -> float:
    return cast("dict[str, Any]", entry).get("weight", 1) if isinstance(entry, dict) else 1


def headers_of(text: str) -> dict[str, str]:
    """Lines of `Name: value` as they stand in a file of their own, in code or behind curl's -H; names in lower case."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if (read := _HEADER.match(line)) is None:
            continue
        value = read[2].rstrip(",").strip()
        if "{" in value[:2] and "}" in value:
            value = value[value.index("{") : value.rindex("}") + 1].replace('\\"', '"')
        found[read[1].lower()] = value.strip("\"' ")
    return {name: value for name, value in found.items() if value}


def key_of(kind: str) -> str:
    """The environment's usual name for a key of that kind, as a reference."""
    return "${" + usual_name(kind) + "}"


def usual_name(kind: str) -> str:
    return _KEYS.get(kind, f"{kind.upper()}_API_KEY")


def window_of(duration: str) -> str | None:
    """A window as nearhit has it: a day, a week or a month; None for any other length."""
    return {"1d": "day", "24h": "day", "7d": "week", "1w": "week", "30d": "month", "1mo": "month", "1y": "year"}.get(
        duration
    )
