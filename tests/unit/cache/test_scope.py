"""What must match exactly, row by row, and that no row can be taken out unnoticed."""

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cache.scope
from cache.scope import IGNORED, MAX_TEXT, ROWS, TIME_SENSITIVE_TTL, Identity, scope_query
from cache.types import Query, Uncacheable

SECRET = b"0123456789abcdef"
ALICE = Identity(org="org", team="acme", project="app", key="key-1", user="alice")
BODY: dict[str, Any] = {
    "model": "smart",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": "How do I bake bread?"},
    ],
    "temperature": 0.2,
}


def ask(
    body: dict[str, Any] | None = None,
    *,
    operation: Any = "chat",
    identity: Identity = ALICE,
    secret: bytes = SECRET,
    model: str = "openai/gpt",
    max_temperature: float = 1.0,
    encoder: str = "minilm",
) -> Query | Uncacheable:
    return scope_query(
        BODY if body is None else body,
        operation,
        identity=identity,
        secret=secret,
        model=model,
        max_temperature=max_temperature,
        encoder=encoder,
    )


def query(body: dict[str, Any] | None = None, **options: Any) -> Query:
    found = ask(body, **options)
    assert isinstance(found, Query)
    return found


def changed(**fields: Any) -> dict[str, Any]:
    return copy.deepcopy(BODY) | fields


def messages(*edits: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    body = copy.deepcopy(BODY)
    for position, message in edits:
        body["messages"][position] = message
    return body


# Per row of the table: two requests that this row, and no other, tells apart.
PAIRS: dict[str, tuple[Callable[[], Query], Callable[[], Query]]] = {
    "org": (query, lambda: query(identity=msgspec.structs.replace(ALICE, org="other"))),
    "team": (query, lambda: query(identity=msgspec.structs.replace(ALICE, team="umbrella"))),
    "project": (query, lambda: query(identity=msgspec.structs.replace(ALICE, project="web"))),
    "principal": (
        lambda: query(identity=msgspec.structs.replace(ALICE, scope="user")),
        lambda: query(identity=msgspec.structs.replace(ALICE, scope="user", user="bob")),
    ),
    "operation": (
        lambda: query({"prompt": "x", "input": "x"}, operation="completion"),
        lambda: query({"prompt": "x", "input": "x"}, operation="embedding"),
    ),
    "model": (query, lambda: query(model="anthropic/claude")),
    "system": (query, lambda: query(messages((0, {"role": "system", "content": "Be rude."})))),
    "history": (query, lambda: query(messages((2, {"role": "assistant", "content": "Go away!"})))),
    "turn": (query, lambda: query(messages((3, {"role": "user", "name": "Al", "content": "How do I bake bread?"})))),
    "tools": (query, lambda: query(changed(tool_choice="none"))),
    "format": (query, lambda: query(changed(response_format={"type": "json_object"}))),
    "sampling": (query, lambda: query(changed(temperature=0.7))),
    "length": (query, lambda: query(changed(max_tokens=5))),
    "count": (query, lambda: query(changed(n=2))),
    "reasoning": (query, lambda: query(changed(reasoning_effort="high"))),
    "encoder": (query, lambda: query(encoder="other")),
    "rest": (query, lambda: query(changed(a_parameter_of_tomorrow=True))),
}


@pytest.mark.parametrize("row", sorted(PAIRS))
def test_row_keeps_requests_apart(row: str) -> None:
    """Each of these pairs would get another answer from the model, so they may never share a scope."""
    one, other = PAIRS[row]
    assert one().scope != other().scope
    assert one().exact != other().exact


@pytest.mark.parametrize("row", sorted(PAIRS))
def test_taking_a_row_out_is_noticed(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation test: without its row, the pair shares a scope, so the test above would fail."""
    monkeypatch.setattr(cache.scope, "ROWS", tuple(item for item in ROWS if item.name != row))
    one, other = PAIRS[row]
    assert one().scope == other().scope


def test_every_row_has_its_pair() -> None:
    """A row nobody tests is a row somebody removes."""
    assert {row.name for row in ROWS} == PAIRS.keys() | {"version"}


def test_a_new_version_leaves_all_entries_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the table changes its meaning, old entries must become unreachable."""
    before = query()
    monkeypatch.setattr(cache.scope, "VERSION", cache.scope.VERSION + 1)
    assert query().scope != before.scope


@pytest.mark.parametrize(
    "field", sorted({field for row in ROWS for field in row.fields} - {"messages", "prompt", "input"})
)
def test_every_named_field_counts(field: str) -> None:
    """A row may account for several fields; each of them must reach the digest."""
    assert query(changed(**{field: "something else"})).scope != query().scope


@pytest.mark.parametrize("field", sorted(IGNORED))
def test_delivery_does_not_matter(field: str) -> None:
    """Streaming or not, for whom and why: the answer is the same, and a cache that split on it would rarely hit."""
    other = query(changed(**{field: {"any": "thing"}}))
    assert (other.scope, other.exact) == (query().scope, query().exact)


def test_only_the_last_question_may_match_by_meaning() -> None:
    """Another wording stays in the scope and differs in the exact digest."""
    other = query(messages((3, {"role": "user", "content": "How is bread baked?"})))
    assert other.scope == query().scope
    assert other.exact != query().exact
    assert other.text == "How is bread baked?"
    assert other.semantic_bar is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (changed(temperature=0), changed(temperature=0.0)),
        (changed(stop=None), changed()),
        (changed(tools=None, n=None), changed()),
    ],
)
def test_the_same_request_written_otherwise(one: dict[str, Any], other: dict[str, Any]) -> None:
    """An explicit null is the default, and 0 is 0.0."""
    assert query(one).exact == query(other).exact


def test_key_order_does_not_matter() -> None:
    """Two clients' libraries write the same request in another order."""
    assert query(dict(reversed(list(BODY.items())))).exact == query().exact


def test_fields_cannot_run_into_each_other() -> None:
    """Length prefixes: team `a` project `bc` is not team `ab` project `c`."""
    one = query(identity=Identity(team="a", project="bc"))
    assert query(identity=Identity(team="ab", project="c")).scope != one.scope
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    moved = [{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]
    first = query(messages((3, {"role": "user", "content": parts})))
    assert query(messages((3, {"role": "user", "content": moved}))).exact != first.exact


def test_without_the_secret_nobody_can_tell_a_scope() -> None:
    """Digests stand in Redis and in files; a plain hash of a guessed prompt must not be found there."""
    assert query(secret=b"another secret!!").scope != query().scope
    with pytest.raises(ValueError, match="16 bytes"):
        ask(secret=b"short")


@pytest.mark.parametrize(
    "identity",
    [
        Identity(team=""),
        Identity(org="", team="acme"),
        Identity(org="", team="acme", scope="org"),
        Identity(team="acme", scope="key"),
        Identity(team="acme", scope="user"),
        Identity(team="", user="alice", scope="user"),
        Identity(team="", scope="team"),
    ],
)
def test_no_identity_no_cache(identity: Identity) -> None:
    """When it is not known whose answer it is, nobody may get it."""
    assert ask(identity=identity) == Uncacheable("no-identity")


@pytest.mark.parametrize(
    ("level", "shared", "apart"),
    [
        ("org", {"team": "umbrella", "project": "web", "key": "key-2", "user": "bob"}, {"org": "other"}),
        ("team", {"project": "web", "key": "key-2", "user": "bob"}, {"team": "umbrella"}),
        ("project", {"key": "key-2", "user": "bob"}, {"project": "web"}),
        ("key", {"user": "bob"}, {"key": "key-2"}),
        ("user", {"key": "key-2"}, {"user": "bob"}),
    ],
)
def test_levels_share_as_far_as_they_say(level: Any, shared: dict[str, str], apart: dict[str, str]) -> None:
    """A narrower scope may not see a wider one's entries, nor a sibling's."""
    me = msgspec.structs.replace(ALICE, scope=level)
    assert query(identity=msgspec.structs.replace(me, **shared)).scope == query(identity=me).scope
    assert query(identity=msgspec.structs.replace(me, **apart)).scope != query(identity=me).scope


def test_levels_never_share_with_each_other() -> None:
    """`user` equal to `key` by chance is no bridge between levels."""
    same = Identity(team="t", project="p", key="x", user="x")
    scopes = {
        query(identity=msgspec.structs.replace(same, scope=level)).scope
        for level in ("org", "team", "project", "key", "user")
    }
    assert len(scopes) == 5


@pytest.mark.parametrize(
    ("body", "bar"),
    [
        (changed(tools=[{"type": "function", "function": {"name": "f"}}]), "tools"),
        (changed(functions=[{"name": "f"}]), "tools"),
        (changed(n=3), "n"),
        (changed(logprobs=True), "logprobs"),
        (changed(top_logprobs=0), "logprobs"),
        (changed(audio={"voice": "x"}), "audio"),
        (messages((3, {"role": "tool", "content": "42", "tool_call_id": "c"})), "last-turn-not-user"),
        (messages((3, {"role": "assistant", "content": "Bread is"})), "last-turn-not-user"),
        (messages((3, {"role": "user", "content": "  "})), "no-text"),
        (messages((3, {"role": "user", "content": []})), "no-text"),
        (messages((3, {"role": "user", "content": None})), "no-text"),
        (messages((3, {"role": "user", "content": "x " * MAX_TEXT})), "text-too-long"),
        (messages((3, {"role": "user", "content": "What is the latest on bread?"})), "time-sensitive"),
        (changed(web_search_options={}), "time-sensitive"),
        (changed(native={"tools": [{"type": "web_search"}]}), "time-sensitive"),
        (changed(native={"mcp_servers": [{"url": "https://x"}]}), "time-sensitive"),
        (
            messages((3, {"role": "user", "content": [
                {"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:,1"}}]})),
            "non-text-parts",
        ),
    ],
)  # fmt: skip
def test_what_may_only_match_exactly(body: dict[str, Any], bar: str) -> None:
    """Tools act, pictures and long texts cannot be compared, several choices are asked for on purpose."""
    found = query(body)
    assert found.semantic_bar == bar
    assert found.exact == query(copy.deepcopy(body)).exact


def test_pictures_count() -> None:
    """The same words about another picture are another question."""

    def about(url: str) -> Query:
        parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
        return query(messages((3, {"role": "user", "content": parts})))

    assert about("data:,1").exact != about("data:,2").exact
    assert about("data:,1").exact == about("data:,1").exact


def test_a_list_of_one_text_is_that_text() -> None:
    """Clients write `"hi"` or `[{"type": "text", "text": "hi"}]`; both are answered alike."""
    parts = [{"type": "text", "text": "How do I bake bread?"}]
    found = query(messages((3, {"role": "user", "content": parts})))
    assert (found.scope, found.exact) == (query().scope, query().exact)


@pytest.mark.parametrize("operation", ["completion", "embedding"])
def test_completions_and_embeddings_match_exactly_only(operation: str) -> None:
    """A completion's prompt has no question to compare; a vector of another text is simply wrong."""
    one = query({"model": "m", "prompt": "a", "input": "a"}, operation=operation)
    other = query({"model": "m", "prompt": "b", "input": "b"}, operation=operation)
    assert one.semantic_bar == "operation"
    assert one.exact != other.exact
    lists = query({"model": "m", "prompt": ["a"], "input": ["a"]}, operation=operation)
    assert lists.exact != one.exact


@pytest.mark.parametrize("operation", ["completion", "embedding"])
@pytest.mark.parametrize(("text", "value"), [('["a"]', ["a"]), ("[1,2]", [1, 2]), ("null", None)])
def test_a_text_that_spells_a_list_is_not_that_list(operation: str, text: str, value: object) -> None:
    """The vector of the text '["a"]' is not that of "a": whoever asked second was answered with the first one's."""
    one = query({"model": "m", "prompt": text, "input": text}, operation=operation)
    other = query({"model": "m", "prompt": value, "input": value}, operation=operation)
    assert one.exact != other.exact


def test_hot_sampling_is_not_cached() -> None:
    """Whoever asks for variety must get it; absent means the API's default of 1.0."""
    assert ask(changed(temperature=1.5)) == Uncacheable("temperature")
    assert ask({k: v for k, v in BODY.items() if k != "temperature"}, max_temperature=0.9) == Uncacheable("temperature")
    assert isinstance(ask(changed(temperature=1.0)), Query)
    assert isinstance(ask({"input": "x"}, operation="embedding", max_temperature=0.0), Query)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": "hello"},
        {"messages": [None]},
        {"messages": ["hi"]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": {"x": 1}}]},
        {"messages": [{"role": "user", "content": ["x", 1, None]}]},
        {"messages": [{"role": ["user"], "content": "x"}]},
        {"messages": [{"role": "user", "content": "x"}], "n": [1]},
        {"messages": [{"role": "user", "content": "x"}], "temperature": "hot"},
        {"messages": [{"role": "user", "content": "\ud800"}]},
        {"messages": [{"role": "user", "content": "x", "name": "\ud800"}]},
        {"messages": [{"role": "user", "content": "x"}], "extra": object()},
    ],
)
def test_odd_bodies_are_never_an_error(body: dict[str, Any]) -> None:
    """Validation is elsewhere; here an odd body is exact-only or not cached, and never raises."""
    found = ask(body)
    assert isinstance(found, Query | Uncacheable)
    if isinstance(found, Query):
        assert len(found.scope) == len(found.exact) == 32


def test_time_sensitive_answers_age_fast() -> None:
    """The answer to "now" of yesterday is wrong, even to the very same words."""
    assert query(messages((3, {"role": "user", "content": "Who is winning right now?"}))).max_ttl == TIME_SENSITIVE_TTL
    assert query().max_ttl is None


def test_a_short_answer_to_a_question_back_is_about_the_moment_too() -> None:
    """ "Paris" after "what is the weather today?" was kept for a day, and tomorrow's asker got today's weather."""

    def talk(asked: object, back: str = "Which city?") -> Query:
        turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": back}]
        return query({"messages": [*turns, {"role": "user", "content": "Paris"}]})

    for asked in ("What is the weather today?", [{"type": "text", "text": "What is the weather today?"}]):
        assert (talk(asked).max_ttl, talk(asked).semantic_bar) == (TIME_SENSITIVE_TTL, "time-sensitive")
    assert talk("What is the capital of France?", back="How can I help you today?").max_ttl is None
    tool = [{"role": "user", "content": "Weather now?"}, {"role": "tool", "tool_call_id": "1", "content": "12 °C"}]
    assert query({"messages": tool}).max_ttl == TIME_SENSITIVE_TTL


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False)
        | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=12,
    ),
    st.text(max_size=8),
)
def test_any_extra_field_changes_the_scope(value: object, name: str) -> None:
    """Parameters invented tomorrow change answers too: what is not known must match."""
    if name in IGNORED or name in BODY or value is None:
        return
    found = ask(changed(**{name: value}))
    if isinstance(found, Query):
        assert found.scope != query().scope


def test_an_upgraded_worker_finds_what_an_older_one_kept() -> None:
    """Digests name what is stored: how they are put together may change, their bytes only with `VERSION`."""
    found = query()
    assert found.scope.hex() == "72dd07a510495c3630396327b1c4bdf0c99dba2395941c515fe7ef96e698abc5"
    assert found.exact.hex() == "ec453d13adf33cd6213736831c4ed46f25478099bd3643b96be58ece9222e7be"
