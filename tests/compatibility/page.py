"""Results as a page: what passed, what failed and why, what cannot apply and why.

Knows: Markdown, and which tests need what a small bundled model cannot do. Does not know: how suites are run.
"""

import re
import time

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
# What the bundled model (a few MB, taught one topic) cannot be asked: the whole of `suite: test`, and why that is no
# fault of the surface or of the engine. Everything else that fails, failed.
_BY_ITSELF = "leaves it to the model to call a tool (tool_choice auto), which the bundled one was not taught"
_VALUES = "asks for words or numbers of the question; the bundled model keeps the schema and fills in others"
_IN_WORDS = "tells the schema in words only (json_object); the bundled model writes JSON, but of its own"
_OBEYS = "asks the model to count, which the bundled one was not taught"
_BEYOND_THE_ENGINE = (
    (re.compile(r"openai: moderations"), "no moderation model is bundled"),
    (re.compile(r"anthropic: tool|pydantic_ai: \S+ tools"), _BY_ITSELF),
    (re.compile(r"node_clients: (ai-sdk/\S+ (tool loop|stream tool)|anthropic-ts tool stream)"), _BY_ITSELF),
    (re.compile(r"langchain_standard: \S+::test_agent_loop\S*"), _BY_ITSELF),
    # They want an age that is not 0.
    (re.compile(r"openai: (parse pydantic|stream parse helper|responses parse)"), _VALUES),
    (re.compile(r"pydantic_ai: \S+ typed output"), _VALUES),
    (
        re.compile(r"langchain_standard: \S+::test_(tool_calling(_async)?(\[\w+\])?|unicode_tool_call_integration)"),
        _VALUES,
    ),
    (
        re.compile(r"langchain_standard: \S+::test_tool_calling_with_no_arguments"),
        "asks for exactly one call; how many is left to the model (parallel_tool_calls)",
    ),
    (re.compile(r"langchain_standard: \S+::test_json_mode|instructor: JSON"), _IN_WORDS),
    (re.compile(r"anthropic: stream|node_clients: anthropic-ts stream"), _OBEYS),
)


def written(found: dict[str, list[Result]]) -> str:
    parts = [
        "# Other people's clients",
        "",
        "<!-- written by `python -m tests.compatibility --write`; not by hand -->",
        "",
        "Real clients, unchanged, pointed at nearhit by their base URL. *Not applicable* is what a suite leaves out",
        "itself, and with the bundled engine what takes a model that can do more; what else does not pass, failed.",
        f"Run on {time.strftime('%Y-%m-%d', time.gmtime())}.",
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
            (why for pattern, why in _BEYOND_THE_ENGINE if pattern.fullmatch(f"{result.suite}: {failure.name}")), None
        )
        if why is None:
            failed.append(failure)
        else:
            beyond.append((failure, why))
    return failed, beyond
