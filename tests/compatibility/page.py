"""Results as a page: what passed, what failed and why, what cannot apply and why.

Knows: Markdown, and which tests need what a small bundled model cannot do. Does not know: how suites are run.
"""

import re

from tests.compatibility.suites import Failure, Result

_TITLES = {
    "openai": "openai (Python)",
    "anthropic": "anthropic (Python)",
    "instructor": "instructor",
    "pydantic_ai": "pydantic-ai",
    "llamaindex": "LlamaIndex",
    "litellm_sdk": "LiteLLM's SDK",
    "node_clients": "Vercel AI SDK, openai-node, Anthropic's, LangChain.js",
    "langchain_standard": "LangChain's standard tests",
}
_BEHIND = {
    "reference": "With the suites' own scripted reference server as the upstream",
    "engine": "With the bundled engine and encoder alone",
}
# What the bundled model (a few MB, taught one topic) or engine cannot be asked: a pattern of `suite: test`, and why it
# is no fault of the surface. Tests of answers by count or by length count to nine or fifty.
_TOOLS = "needs a model that follows tools or schemas by itself"
_OBEYS = "asks the model to count, which the bundled one was not taught"
_BEYOND_THE_ENGINE = (
    (re.compile(r"moderation", re.IGNORECASE), "no moderation model is bundled"),
    (re.compile(r"image|audio|pdf|multimodal", re.IGNORECASE), "the bundled model reads text only"),
    (re.compile(r"instructor:|tool|agent|bind|typed output|parse|struct|json|object|schema", re.IGNORECASE), _TOOLS),
    (re.compile(r"anthropic: stream|length finish|anthropic-ts stream|streamText|stream helper|abort"), _OBEYS),
)


def written(found: dict[str, list[Result]]) -> str:
    parts = [
        "# Other people's clients",
        "",
        "<!-- written by `python -m tests.compatibility --write`; not by hand -->",
        "",
        "Real clients, unchanged, pointed at nearhit by their base URL. *Not applicable* is what a suite leaves out",
        "itself, and with the bundled engine what takes a model that can do more; what else does not pass, failed.",
    ]
    for where, results in found.items():
        parts += ["", f"## {_BEHIND[where]}", "", "| suite | passed | failed | not applicable |", "|---|--:|--:|--:|"]
        rows: list[str] = []
        for result in results:
            failed, beyond = _apart(where, result)
            left_out = len(beyond) + result.skipped
            parts.append(f"| {_title(result)} | {result.passed} | {len(failed)} | {left_out} |")
            rows += [f"| {_title(result)} | {one.name} | failed: {one.why} |" for one in failed]
            rows += [f"| {_title(result)} | {one.name} | not applicable: {why} |" for one, why in beyond]
            if result.skipped:
                rows.append(
                    f"| {_title(result)} | {result.skipped} tests | not applicable: skipped by the suite itself |"
                )
        if rows:
            parts += ["", "| suite | test | why |", "|---|---|---|", *rows]
    return "\n".join(parts) + "\n"


def _title(result: Result) -> str:
    return _TITLES.get(result.suite, result.suite)


def _apart(where: str, result: Result) -> tuple[list[Failure], list[tuple[Failure, str]]]:
    """What failed, and what could not have passed here with the reason."""
    if where != "engine":
        return result.failures, []
    failed: list[Failure] = []
    beyond: list[tuple[Failure, str]] = []
    for failure in result.failures:
        why = next(
            (why for pattern, why in _BEYOND_THE_ENGINE if pattern.search(f"{result.suite}: {failure.name}")), None
        )
        if why is None:
            failed.append(failure)
        else:
            beyond.append((failure, why))
    return failed, beyond
