"""The span tree that is built from a request's marks."""

import itertools

import pytest
from msgspec import structs

from gateway.telemetry import Attempt
from gateway.traces import Parent, Span, Trace, attempt_span_id, build_trace, parent_of, traceparent_for
from policies.money import Usage
from tests.unit.telemetry.requests import AT, REQUEST_ID, a_call, a_hit, a_miss, marks

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def named(trace: Trace) -> dict[str, Span]:
    return {span.name: span for span in trace.spans}


def test_a_miss_reads_like_the_code() -> None:
    """Operators read a slow request in the trace, so its spans are the functions and nest like them."""
    ids = (f"{number:016x}" for number in itertools.count(1))
    trace = build_trace(a_miss(), marks(), "sampled", span_id=lambda: next(ids))
    spans = named(trace)
    names = ["request", "admit", "cache.find", "dispatch", "provider.first_chunk", "provider.stream"]
    assert [span.name for span in trace.spans] == names
    root = spans["request"]
    assert root.parent is None
    assert {spans[name].parent for name in ("admit", "cache.find", "dispatch")} == {root.id}
    assert spans["provider.first_chunk"].parent == spans["dispatch"].id
    assert len({span.id for span in trace.spans}) == 6
    assert root.start == pytest.approx(AT)
    assert root.end == pytest.approx(AT + 0.4)
    assert spans["cache.find"].start == pytest.approx(AT + 0.001)
    assert spans["cache.find"].end == pytest.approx(AT + 0.006)
    assert spans["provider.first_chunk"].end == pytest.approx(AT + 0.1)


def test_encoder_ledger_and_engine_are_in_the_same_trace() -> None:
    """Where the time went is asked of one trace: each part that can be slow has its own span, nested where it ran."""
    attempt = Attempt(
        id="r.1", provider="local", model="demo", started=100.008, sent=100.01, first_chunk=100.1, ended=100.4
    )
    attempt.queue_ms, attempt.prefill_ms = 30.0, 50.0
    trace = build_trace(a_miss(), marks(embedded=(100.002, 100.005), attempts=[attempt]), "sampled")
    found, names = named(trace), {span.id: span.name for span in trace.spans}
    nested = {span.name: names.get(span.parent or "") for span in trace.spans}
    assert nested == {
        "request": None,
        "admit": "request",
        "cache.find": "request",
        "encoder.embed": "cache.find",
        "dispatch": "request",
        "ledger.hold": "dispatch",
        "provider.first_chunk": "dispatch",
        "engine.queue": "provider.first_chunk",
        "engine.prefill": "provider.first_chunk",
        "engine.decode": "dispatch",
    }
    assert found["engine.queue"].start == found["ledger.hold"].end == pytest.approx(AT + 0.01)
    assert found["engine.prefill"].end == pytest.approx(AT + 0.09)
    assert found["provider.first_chunk"].id == attempt_span_id("r.1")


def test_an_upstream_is_told_which_span_is_its_parent() -> None:
    """Its own spans then hang under our attempt; whether it keeps them is decided as it is here."""
    call = a_call(traceparent=CALLER)
    told = parent_of(traceparent_for(call, "r.2", 0.0))
    assert told == Parent("0af7651916cd43dd8448eb211c80319c", attempt_span_id("r.2"), sampled=True)
    own = parent_of(traceparent_for(a_call(), "r.1", 0.0))
    assert own is not None
    assert not own.sampled


def test_why_it_was_a_miss_and_how_fast_it_went_are_attributes() -> None:
    """Both are asked of many traces at once, where no page helps."""
    outcome = a_miss(a_call(stream=True))
    outcome.explain = {"reason": "far"}
    found = build_trace(outcome, marks(), "sampled").spans[0].attributes
    assert found["nearhit.cache.reason"] == "far"
    assert found["nearhit.time_to_first_token"] == 0.1
    assert found["nearhit.time_per_output_token"] == pytest.approx(0.3 / 19)


def test_the_attributes_of_a_miss() -> None:
    """The names are what tracing back ends read; renaming one silently empties somebody's dashboard."""
    spans = named(build_trace(a_miss(a_call(temperature=0.2, max_tokens=50, stream=True)), marks(), "sampled"))
    assert spans["request"].attributes["nearhit.cost.usd"] == "0.0015"
    assert spans["request"].attributes["nearhit.cache.status"] == "miss"
    assert spans["request"].attributes["nearhit.request.id"] == REQUEST_ID
    assert spans["dispatch"].attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "smart",
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": 0.2,
        "gen_ai.request.max_tokens": 50,
        "gen_ai.response.model": "gpt-5-mini",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 0.1,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 4,
    }


def test_a_number_that_no_span_can_hold_is_left_out() -> None:
    """A `seed` of 64 bits beside embeddings, which check none, put a traceback per request into the log."""
    call = a_call(operation="embedding", seed=2**64 - 1, n=2**63 - 1, top_p=0.5)
    attributes = named(build_trace(a_miss(call), marks(), "sampled"))["dispatch"].attributes
    assert "gen_ai.request.seed" not in attributes
    assert (attributes["gen_ai.request.choice.count"], attributes["gen_ai.request.top_p"]) == (2**63 - 1, 0.5)


def test_a_request_that_nobody_answered_names_who_was_asked_last() -> None:
    """Whoever groups failures by provider found all of them under none, and calls of 0 tokens."""
    tried = [Attempt(provider=name, model="m", started=100.0, first_chunk=0.0, result="refused") for name in "ab"]
    failed = a_miss(status=502, error="upstream_error", provider="", model="", usage=Usage(), finish=None)
    attributes = named(build_trace(failed, structs.replace(marks(), attempts=tried), "error"))["dispatch"].attributes
    assert attributes["gen_ai.provider.name"] == "b"
    assert not [name for name in attributes if name.startswith("gen_ai.usage")]


def test_a_hit_buys_no_tokens() -> None:
    """Billable tokens are summed up from traces too: a hit must not count as if they had been bought."""
    trace = build_trace(a_hit(), marks(dispatched=0.0, first_chunk=0.0, attempts=[]), "sampled")
    assert [span.name for span in trace.spans] == ["request", "admit", "cache.find"]
    assert not [name for span in trace.spans for name in span.attributes if name.startswith("gen_ai.usage")]
    found = named(trace)["cache.find"]
    assert found.attributes["nearhit.cache.tier"] == "semantic"
    assert found.attributes["nearhit.cache.similarity"] == 0.97
    assert trace.spans[0].attributes["nearhit.cost.saved_usd"] == "0.0015"


def test_every_attempt_is_a_span() -> None:
    """A failover is only understood when the attempt that failed can be seen beside the one that answered."""
    tried = [
        Attempt(provider="openai", model="a", started=100.008, ended=100.05, result="UpstreamTimeout"),
        Attempt(provider="lab", model="b", started=100.05, first_chunk=100.1),
    ]
    trace = build_trace(a_miss(attempts=2), marks(attempts=tried), "sampled")
    attempts = [span for span in trace.spans if span.name == "provider.first_chunk"]
    assert [(span.attributes["gen_ai.provider.name"], span.error) for span in attempts] == [
        ("openai", "UpstreamTimeout"),
        ("lab", None),
    ]


def test_it_joins_the_callers_trace() -> None:
    """An app that traces itself must find its gateway call inside its own trace."""
    trace = build_trace(a_miss(a_call(traceparent=CALLER)), marks(), "sampled")
    assert trace.id == "0af7651916cd43dd8448eb211c80319c"
    assert trace.spans[0].parent == "b7ad6b7169203331"


def test_without_a_caller_the_trace_is_named_by_the_request() -> None:
    """Whoever has the x-request-id of an answer can look its trace up without a search."""
    assert build_trace(a_miss(), marks(), "sampled").id == REQUEST_ID.replace("-", "")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n",
    ],
)
def test_a_malformed_context_is_as_none(header: str) -> None:
    """W3C: a context that cannot be parsed is not passed on; above all it is no reason to fail."""
    assert parent_of(header) is None


def test_a_future_version_is_understood() -> None:
    """W3C: later versions may append fields, and the first four still count."""
    found = parent_of("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-extra")
    assert found is not None
    assert not found.sampled


def test_no_content_unless_asked() -> None:
    """Traces leave the machine; prompts must not go with them by default."""
    quiet = build_trace(a_miss(a_call(user="alice", stop=["alice"])), marks(), "sampled")
    assert not [
        value
        for span in quiet.spans
        for value in span.attributes.values()
        if "secret" in str(value) or "alice" in str(value)
    ]
    loud = build_trace(a_miss(), marks(), "sampled", content=True)
    assert "secret recipe" in str(loud.spans[0].attributes["gen_ai.input.messages"])


def test_no_step_sticks_out_of_the_request() -> None:
    """A detached call may go on after its client: viewers drop children that lie outside their parent."""
    late = marks(first_chunk=100.9, attempts=[Attempt(provider="p", model="m", started=100.3, first_chunk=100.9)])
    trace = build_trace(a_miss(), late, "slow")
    root = trace.spans[0]
    assert all(root.start <= span.start <= span.end <= root.end for span in trace.spans)
