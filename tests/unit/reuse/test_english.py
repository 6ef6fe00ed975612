"""What guards stand on: words, stems, numbers, and what is read from one text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.reuse.english import numbers, stem, words
from policies.reuse.facts import analyse


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("twenty one cats, 1,000 dogs", [21, 1_000]),
        ("a hundred and five", [105]),
        ("the 21st and the twenty first", [21, 21]),
        ("5k for $5.50", [5_000, 5.5]),
        ("half a dozen", [0.5, 12]),
        ("two three", [2, 3]),
        ("a million", [1_000_000]),
        ("3.5 million", [3_500_000]),
        ("no numbers here, I said", []),
    ],
)
def test_numbers_in_digits_and_words(text: str, values: list[float]) -> None:
    """`21st` and `twenty first` are one quantity; `two three` are two."""
    assert [number.value for number in numbers(words(text))] == pytest.approx(values)


def test_a_hundred_numbers_in_a_row_are_a_figure_too() -> None:
    """A table pasted into a question made every look-up near it an error, and its answers could not be compared."""
    row = ",".join(str(7 * i % 10) for i in range(120))
    (one,) = numbers(words(row))
    (other,) = numbers(words(row[:-1] + "9"))
    assert one.value != other.value


@pytest.mark.parametrize(
    "pair", ["3.1|3.10", "10:30|10:31", "1.2.3|1.2.4", "7/8|8/7", "2,5|25", "1e5|1e6", "12,000|120,00"]
)
def test_different_figures_stay_different(pair: str) -> None:
    """Version 3.10 is not version 3.1, whatever a float thinks."""
    one, other = pair.split("|")
    assert [n.value for n in numbers(words(one))] != [n.value for n in numbers(words(other))]


@pytest.mark.parametrize(
    "forms",
    ["policy policies", "stop stops stopped stopping", "make makes making made", "pay paid", "wife wives",
     "cancel canceled cancelled cancelling", "bite bites bitten", "verify verifies verified verifying"],
)  # fmt: skip
def test_forms_of_a_word_meet(forms: str) -> None:
    """Else every plural would look like another topic."""
    assert len({stem(word) for word in forms.split()}) == 1


@pytest.mark.parametrize("pair", ["time team", "new news", "red reed", "bus busy", "policy police", "able table"])
def test_different_words_stay_apart(pair: str) -> None:
    """A stemmer that is too eager makes near misses equal."""
    one, other = pair.split()
    assert stem(one) != stem(other)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("How many hours does it take?", "duration"),
        ("how many apples", "count"),
        ("how many miles is it", "distance"),
        ("How many times a day?", "frequency"),
        ("What time is dinner?", "when"),
        ("Tell me where it is", "where"),
        ("The app crashes when I log in", ""),
        ("Reset my password", ""),
        ("How come it rains?", "why"),
        ("How", "how"),
    ],
)
def test_what_is_asked_for(text: str, kind: str) -> None:
    """When is not where; a subordinate "when" asks nothing."""
    assert analyse(text).question == kind


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Who is Marie Curie?", {"mary", "cury"}),
        ("Paris is nice. Berlin too.", set()),
        ("HOW DO I RESET MY PASSWORD", set()),
        ("The Lord Of The Rings Summary", set()),
        ("what does TTFT mean", {"ttft"}),
        ("Can I use iOS?", set()),
    ],
)
def test_names_are_capital_words_that_need_not_be(text: str, names: set[str]) -> None:
    """A sentence's first word, a title and shouting say nothing about names."""
    assert analyse(text).names == names


@given(st.text(max_size=300))
def test_any_text_can_be_read(text: str) -> None:
    """Texts come from anybody; a crash here would be a request that fails."""
    facts = analyse(text)
    assert facts == analyse(text)
    assert facts.content_set <= facts.stem_set
