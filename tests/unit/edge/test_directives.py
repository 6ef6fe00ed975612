"""Headers into directives: what each means, and that what cannot be read is refused by name."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.call import Directives
from gateway.directives import directives
from gateway.errors import InvalidRequest
from policies.reuse import Budget


def read(*headers: tuple[str, str]) -> Directives:
    return directives([(name.encode(), value.encode("latin-1")) for name, value in headers])


def fault_of(headers: list[tuple[bytes, bytes]]) -> InvalidRequest | None:
    try:
        directives(headers)
    except InvalidRequest as error:
        return error
    return None


def test_ordinary_headers_ask_for_nothing() -> None:
    """A client that knows nothing of us gets the defaults."""
    assert read(("host", "x"), ("authorization", "Bearer k"), ("x-stainless-lang", "python")) == Directives()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("cache-control", "no-cache", {"read": False}),
        ("cache-control", "No-Store", {"write": False}),
        ("cache-control", "no-cache, no-store", {"read": False, "write": False}),
        ("cache-control", "max-age=60", {"max_age": 60.0}),
        ("cache-control", "max-age=0, no-transform", {"max_age": 0.0}),
        ("cache-control", "only-if-cached", {"only_if_cached": True}),
        ("x-nearhit-cache", "off", {"tier": "off"}),
        ("x-nearhit-cache", "EXACT", {"tier": "exact"}),
        ("x-nearhit-max-error-rate", "0.005", {"allowed": Budget(max_error_rate=0.005, max_wrong_hit_rate=1.0)}),
        ("x-nearhit-max-error-rate", "0", {"allowed": Budget(max_error_rate=0.0, max_wrong_hit_rate=1.0)}),
        ("x-nearhit-max-wrong-hit-rate", "0.02", {"allowed": Budget(max_error_rate=1.0, max_wrong_hit_rate=0.02)}),
        ("x-nearhit-cache-ttl", "90", {"ttl": 90.0}),
        ("x-nearhit-cache-ttl", "5m", {"ttl": 300.0}),
        ("x-nearhit-cache-scope", "user", {"per_user": True}),
        ("x-nearhit-cache-scope", "project", {"per_user": False}),
        ("x-nearhit-user", "u-1", {"user": "u-1"}),
        ("x-nearhit-tags", "a=b, team.x=1 2", {"tags": (("a", "b"), ("team.x", "1 2"))}),
        ("x-nearhit-max-cost-usd", "0.0105", {"max_cost_nano": 10_500_000}),
        ("x-nearhit-max-cost-usd", "12", {"max_cost_nano": 12_000_000_000}),
        ("x-nearhit-max-cost-usd", ".000000001", {"max_cost_nano": 1}),
        ("x-nearhit-timeout", "500ms", {"timeout": 0.5}),
        ("x-nearhit-timeout", "30", {"timeout": 30.0}),
        ("x-nearhit-dry-run", "1", {"dry_run": True}),
        ("x-nearhit-dry-run", "false", {"dry_run": False}),
        ("x-nearhit-priority", "batch", {}),  # the gate's: here it was refused as a header that does not exist
        ("idempotency-key", "abc 1", {"idempotency_key": "abc 1"}),
        ("traceparent", f"00-{'a' * 32}-{'b' * 16}-01", {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}),
    ],
)
def test_each_header_means_what_the_contract_says(name: str, value: str, expected: dict[str, Any]) -> None:
    """One row per header of the contract."""
    assert read((name, value)) == Directives(**expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache-control", "max-age=soon"),
        ("cache-control", "max-age=-1"),
        ("cache-control", "max-age"),
        ("x-nearhit-cache", "on"),
        ("x-nearhit-max-error-rate", "2"),
        ("x-nearhit-max-error-rate", "-0.1"),
        ("x-nearhit-max-error-rate", "nan"),
        ("x-nearhit-max-error-rate", ""),
        ("x-nearhit-max-wrong-hit-rate", "5%"),
        ("x-nearhit-cache-ttl", "1 week"),
        ("x-nearhit-cache-scope", "org"),
        ("x-nearhit-user", ""),
        ("x-nearhit-user", "x" * 129),
        ("x-nearhit-user", "é"),
        ("x-nearhit-tags", "novalue"),
        ("x-nearhit-tags", "a=1,a=2"),
        ("x-nearhit-tags", ",".join(f"k{i}=v" for i in range(17))),
        ("x-nearhit-max-cost-usd", "1e-3"),
        ("x-nearhit-max-cost-usd", "-1"),
        ("x-nearhit-max-cost-usd", "0.0000000001"),
        ("x-nearhit-max-cost-usd", ""),
        ("x-nearhit-max-cost-usd", "."),
        ("x-nearhit-max-cost-usd", "$1"),
        ("x-nearhit-timeout", "0"),
        ("x-nearhit-timeout", "inf"),
        ("x-nearhit-dry-run", "maybe"),
        ("x-nearhit-cost-limit", "1"),
        ("idempotency-key", "x" * 256),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(name: str, value: str) -> None:
    """A misspelt limit must not be a limit that is not there."""
    with pytest.raises(InvalidRequest) as caught:
        read((name, value))
    assert caught.value.param == name
    assert caught.value.http_status == 400


@pytest.mark.parametrize("value", ["", "00-0-0-0", f"ff-{'a' * 32}-{'b' * 16}-01", f"00-{'0' * 32}-{'b' * 16}-01"])
def test_a_malformed_traceparent_begins_a_new_trace(value: str) -> None:
    """W3C Trace Context says to ignore it, not to refuse."""
    assert read(("traceparent", value)).traceparent is None


@pytest.mark.parametrize("name", ["session-id", "x-claude-code-session-id", "x-session-affinity"])
def test_a_coding_agent_says_which_conversation_it_is(name: str) -> None:
    """Its requests then stay where their beginning is cached; our own header has the last word."""
    assert read((name, "s1")).session == "s1"
    assert read((name, "s1"), ("x-nearhit-session", "s2")).session == "s2"
    assert read(("x-nearhit-session", "s2"), (name, "s1")).session == "s2"


def test_a_header_twice_counts_at_its_stricter_value() -> None:
    """A proxy that appends must not loosen what the client asked."""
    asked = read(
        ("x-nearhit-max-cost-usd", "0.5"),
        ("x-nearhit-max-cost-usd", "1"),
        ("cache-control", "max-age=9"),
        ("cache-control", "max-age=60"),
    )
    assert asked.max_cost_nano == 500_000_000
    assert asked.max_age == 9


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"cache-control", b"x-nearhit-tags", b"x-nearhit-max-cost-usd", b"x-nearhit-timeout"]),
            st.binary(max_size=40),
        ),
        max_size=4,
    )
)
def test_arbitrary_values_are_read_or_refused(headers: list[tuple[bytes, bytes]]) -> None:
    """Never anything but directives or InvalidRequest."""
    fault = fault_of(headers)
    assert fault is None or fault.param
