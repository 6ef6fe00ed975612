"""`/v1/organization`: the parameters of OpenAI's own admin API, as its description has them."""

import base64
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from openai.types.admin.organization import usage_completions_response

from gateway.routes import organization_shapes as shapes
from tests.clock import FrozenClock
from tests.unit.control.house import House, charged, happened, hit_row, house, request_row

NOON = 1_790_000_000 // 86_400 * 86_400 + 43_200


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(NOON)


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    """Requests of today at noon: two teams, two models, a user."""
    async with house(tmp_path, clock) as made:
        rows = [
            request_row(clock, 1, user="u1"),
            request_row(clock, 2, model_used="big", key_id="bbbbbbbb", cache_write=10),
            request_row(clock, 3, team="beta", operation="completion"),
            hit_row(clock, 4),
            request_row(clock, 5, operation="embedding", model_used="minilm", completion=0),
        ]
        await happened(made.services.database, rows)
        yield made


async def results(home: House, kind: str, query: str = "") -> list[dict[str, Any]]:
    async with home.client() as client:
        answer = await client.get(f"/v1/organization/{kind}?start_time={NOON - 43_200}{query}")
    assert answer.status_code == 200, answer.text
    return [result for bucket in answer.json()["data"] for result in bucket["results"]]


@pytest.mark.parametrize(
    ("query", "requests"),
    [
        ("", [4]),
        ("&models=big", [1]),
        ("&models=big&models=demo", [4]),
        ("&models[]=big&models[]=demo", [4]),
        ("&models=big,demo", [4]),
        ("&user_ids=u1", [1]),
        ("&api_key_ids=bbbbbbbb", [1]),
        ("&project_ids=beta/web", [1]),
        ("&project_ids=beta/web&models=big", []),
        ("&project_ids=nobody/x", []),
        ("&batch=true", []),
        ("&batch=false", [4]),
        ("&models=demo&group_by=project_id", [2, 1]),
    ],
)
async def test_filters_count_only_what_they_name(home: House, query: str, requests: list[int]) -> None:
    """A tool that asks for one project and is answered with all of them shows wrong amounts."""
    found = await results(home, "usage/completions", query)
    assert sorted((result["num_model_requests"] for result in found), reverse=True) == requests


async def test_a_filter_does_not_group(home: House) -> None:
    """What was not asked for stays null, and there is one result however many values a filter has."""
    (found,) = await results(home, "usage/completions", "&models=demo&models=big")
    assert (found["model"], found["project_id"], found["batch"]) == (None, None, None)
    (by_batch,) = await results(home, "usage/completions", "&group_by=batch&group_by=service_tier")
    assert (by_batch["batch"], by_batch["service_tier"]) == (False, None)


async def test_costs_by_line_item_tell_how_much_was_used(home: House) -> None:
    """`quantity` and its unit belong to a line item, and stand nowhere else."""
    found = {result["line_item"]: result for result in await results(home, "costs", "&group_by=line_item")}
    assert (found["big"]["quantity"], found["big"]["quantity_unit"]) == (200.0, "tokens")
    (total,) = await results(home, "costs", "&api_key_ids=bbbbbbbb")
    assert (total["quantity"], total["quantity_unit"], total["amount"]["currency"]) == (None, None, "usd")
    assert total["amount"]["value"] == pytest.approx(0.000213)


@pytest.mark.parametrize(
    ("query", "requests"),
    [
        ("&line_items=big", 1),
        ("&line_items=big&models=demo", 0),
        ("&user_ids=u1", 1),
        ("&models=demo&models=big", 4),
        ("&batch=true", 0),
    ],
)
async def test_costs_count_only_what_is_asked_for(home: House, query: str, requests: int) -> None:
    """`line_items` was left unread: a tool that asked for one model's cost was told everybody's."""
    found = await results(home, "costs", f"{query}&group_by=line_item")
    assert sum(result["quantity"] for result in found) == pytest.approx(200.0 * requests)


async def test_costs_by_user_and_source(home: House) -> None:
    """Both are OpenAI's own groups; whatever is not of its Agents API has a word there, and is not null."""
    found = await results(home, "costs", "&group_by=user_id,api_source")
    assert {result["user_id"] for result in found} == {"u1", None}
    assert {result["api_source"] for result in found} == {"unlabeled"}
    (tokens,) = await results(home, "usage/completions", "&group_by=api_source")
    assert tokens["api_source"] == "unlabeled"


@pytest.mark.parametrize("made", shapes.Grouped.__subclasses__(), ids=lambda shape: shape.__name__)
def test_every_field_that_openais_client_knows_is_told(made: Any) -> None:
    """A field that is left out reads as an old server; null says that nobody counts it here."""
    name = made().object if made is not shapes.CostResult else "organization.costs.result"
    types = [getattr(usage_completions_response, each) for each in dir(usage_completions_response)]
    models = [each for each in types if hasattr(each, "model_fields") and "object" in each.model_fields]
    (theirs,) = [each for each in models if name in str(each.model_fields["object"].annotation)]
    assert set(theirs.model_fields) <= {*made.__struct_fields__}


async def test_tokens_are_told_by_class(home: House) -> None:
    """The classes of the prompt add up to it."""
    (found,) = await results(home, "usage/completions", "&models=big")
    parts = ("input_cached_tokens", "input_cache_write_tokens", "input_uncached_tokens")
    assert [found[name] for name in parts] == [20, 10, 90]
    assert found["input_tokens"] == 120


async def test_embeddings_take_the_same_filters(home: House) -> None:
    """The third report obeys as the others do."""
    assert [row["num_model_requests"] for row in await results(home, "usage/embeddings", "&models=minilm")] == [1]
    assert await results(home, "usage/embeddings", "&models=demo") == []


async def test_what_came_in_a_batch_is_told_apart(home: House, clock: FrozenClock) -> None:
    """OpenAI bills batches by other prices, and tools ask for them apart."""
    await happened(home.services.database, [request_row(clock, 6, tags={"nearhit/batch": "1"})])
    counts = {
        query: [(row["batch"], row["num_model_requests"]) for row in await results(home, "usage/completions", query)]
        for query in ("&batch=true", "&batch=false", "&group_by=batch")
    }
    assert counts["&batch=true"] == [(None, 1)]
    assert counts["&batch=false"] == [(None, 4)]
    assert sorted(counts["&group_by=batch"]) == [(False, 4), (True, 1)]


@pytest.mark.parametrize(
    ("kind", "operation", "told"),
    [
        ("moderations", "moderation", {"input_tokens": 120}),
        ("images", "image", {"images": None, "size": None, "source": None}),
        ("audio_speeches", "speech", {"characters": 120}),
        ("audio_transcriptions", "transcription", {"seconds": 120}),
    ],
)
async def test_what_is_passed_on_has_reports_of_its_own(
    home: House, clock: FrozenClock, kind: str, operation: str, told: dict[str, object]
) -> None:
    """In OpenAI's own fields, and null where nobody has counted: a zero would be believed."""
    await happened(home.services.database, [request_row(clock, 6, operation=operation, completion=0, cached=0)])
    (found,) = await results(home, f"usage/{kind}", "&group_by=model")
    assert {name: found[name] for name in told} == told
    assert (found["object"], found["num_model_requests"]) == (f"organization.usage.{kind}.result", 1)
    assert found["model"] == "demo"


async def test_a_transcription_counted_in_tokens_tells_no_seconds(home: House, clock: FrozenClock) -> None:
    """Tokens read as seconds would be hours that nobody spoke."""
    await happened(home.services.database, [request_row(clock, 6, operation="transcription")])
    (found,) = await results(home, "usage/audio_transcriptions")
    assert (found["seconds"], found["num_model_requests"]) == (None, 1)


async def test_searches_are_counted_of_the_ledger(home: House, clock: FrozenClock) -> None:
    """Tools that read OpenAI's bill ask for them too, and were told that there is no such report."""
    database = home.services.database
    kinds = (("s1", "[0,0,0,0,0,3,0,0]", "acme"), ("s2", "[0,0,0,0,0,1,2,0]", "beta"), ("s3", "[0,0,7,0,0]", "acme"))
    for number, (name, classes, team) in enumerate(kinds):
        await charged(database, name, clock.now() - 60, 500, classes=classes, team=team, price=f"p{number}", user="u1")
    (web,) = await results(home, "usage/web_search_calls")
    assert (web["num_requests"], web["num_model_requests"], web["model"], web["context_level"]) == (4, 2, None, None)
    (files,) = await results(home, "usage/file_search_calls", "&group_by=project_id,user_id,vector_store_id")
    assert (files["num_requests"], files["project_id"], files["user_id"]) == (2, "beta/web", "u1")
    by = {
        row["project_id"]: row
        for row in await results(home, "usage/web_search_calls", "&group_by=project_id,api_source")
    }
    assert {name: (row["num_requests"], row["api_source"]) for name, row in by.items()} == {
        "acme/web": (3, "unlabeled"),
        "beta/web": (1, "unlabeled"),
    }
    assert await results(home, "usage/file_search_calls", "&project_ids=acme/web") == []
    hours = await results(home, "usage/web_search_calls", "&bucket_width=1h&limit=24&models=demo")
    assert [row["num_requests"] for row in hours] == [4]


async def test_searches_of_other_teams_are_not_told(home: House, clock: FrozenClock) -> None:
    """A finance key of one team reads its own team's."""
    await charged(home.services.database, "s1", clock.now() - 60, 500, classes="[0,0,0,0,0,3,0,0]")
    key = await home.key("finance", team="beta")
    async with home.client(key) as client:
        answer = await client.get(f"/v1/organization/usage/web_search_calls?start_time={NOON - 43_200}")
        assert [bucket["results"] for bucket in answer.json()["data"]] == [[]]
        refused = await client.get(f"/v1/organization/usage/web_search_calls?start_time={NOON - 43_200}&batch=true")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "batch")


@pytest.mark.parametrize("kind", ["vector_stores", "code_interpreter_sessions", "decisions"])
async def test_what_does_not_exist_here_is_an_empty_report(home: House, kind: str) -> None:
    """A tool that walks through every report must not stop at the ones we have nothing for."""
    assert await results(home, f"usage/{kind}") == []


@pytest.mark.parametrize("start", [1, 1_790_000_001, -86_400, 10**30, -(10**30)])
async def test_a_page_that_was_never_handed_out_is_refused(home: House, start: int) -> None:
    """Buckets that begin at odd seconds have no rows, and one that begins before all time has no end."""
    page = base64.urlsafe_b64encode(str(start).encode()).decode().rstrip("=")
    async with home.client() as client:
        answer = await client.get(f"/v1/organization/costs?start_time=0&page=page_{page}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "page")


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("usage/images?start_time=0&sizes=1024x1024", "sizes"),
        ("usage/completions?start_time=0&batch=maybe", "batch"),
        ("costs?start_time=0&group_by=model", "group_by"),
        ("costs?start_time=0&bucket_width=1h", "bucket_width"),
        ("usage/completions?start_time=0&limit=32", "limit"),
        ("usage/completions?start_time=0&page=x%21", "page"),
        ("usage/completions?start_time=0&models=" + ",".join(map(str, range(101))), "models"),
    ],
)
async def test_what_cannot_be_answered_is_refused(home: House, path: str, param: str) -> None:
    """A parameter that is ignored gives an answer to another question."""
    async with home.client() as client:
        answer = await client.get(f"/v1/organization/{path}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
