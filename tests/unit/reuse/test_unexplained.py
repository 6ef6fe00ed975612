# ruff: noqa: E501 - a pair reads best on one line
"""A difference nobody has thought of forbids; one that English is known to allow does not."""

from collections import Counter
from pathlib import Path

import pytest

from cache.bench.data import read_pairs
from policies.reuse.facts import analyse
from policies.reuse.guards import GUARDS, forbids

_DATA = Path(__file__).parents[2] / "data"

_FORBIDDEN = """
What can I use instead of buttermilk in pancakes? | What can I use along with buttermilk in pancakes?
my cat keeps refusing wet food, what should i do | my cat keeps refusing anything but wet food, what should i do
Does the warranty cover damage other than water damage? | Does the warranty cover damage such as water damage?
Which company was LinkedIn acquired by? | Which companies has LinkedIn acquired?
My coworker was promoted over me, how should I talk to him? | I was promoted over my coworker, how should I talk to him?
Show the customers whom our sales reps complained about. | Show the customers who complained about our sales reps.
How do I let a colleague control my screen in Teams? | How do I control a colleague's screen in Teams?
I have a Mac and a PC; how do I reset the former? | I have a Mac and a PC; how do I reset the latter?
Did Amazon raise the price of Prime? | Will Amazon raise the price of Prime?
What happens if all the jurors agree on a guilty verdict? | What happens if not all the jurors agree on a guilty verdict?
Why do few goalkeepers take penalties? | Why do a few goalkeepers take penalties?
Write a SQL query for the second-highest salary. | Write a SQL query for the two highest salaries.
Can I have my salary paid into my wife's account? | Can I have my wife's salary paid into my account?
Do I let dough rise first and then knead it? | Do I knead dough first and then let it rise?
Which stage of mitosis does metaphase follow? | Which stage of mitosis follows metaphase?
Which fishing rules applied in UK waters up to Brexit? | Which fishing rules applied in UK waters as of Brexit?
Which vaccines do puppies need by the time they turn one? | Which vaccines do puppies need from the time they turn one?
Can a company be fined for its auditor's mistake? | Can a company's auditor be fined for its mistake?
My boyfriend moved into my flat. Does he get any rights to it? | My boyfriend moved into his flat. Do I get any rights to it?
How many legs are there on all of three spiders? | How many legs are there on each of three spiders?
What should I do if my dog bites another dog? | What should I do if another dog bites my dog?
How can I tell if someone blocked me on Instagram? | How can I tell if I blocked someone on Instagram?
Should I paint before sanding? | Before painting, should I sand?
What do you charge per room? | What do you charge per roof?
I want to end it all | How do I end it all?
I have to leave my job | How do I leave my job?
Why should I learn Latin? | How should I learn Latin?
How do I list folders with a .jpg or a .png? | How do I list folders with a .jpg and a .png?
What time does the bank open? | What day does the bank open?
When should I see a doctor for a cold? | Should I see a doctor for a cold?
Which birds can swim? | Can birds swim?
How dangerous is Rio? | Is Rio dangerous?
Can I return shoes without a receipt? | How do I return shoes without a receipt?
How many states border Texas? | Which states border Texas?
What is the number of employees of Apple? | Who are the employees of Apple?
When should I water tomatoes? | How often should I water tomatoes?
What can I eat before surgery? | What should I eat before surgery?
Will I get a refund? | Can I get a refund?
How is cheese made? | How was cheese made?
Who can I sue? | Who can sue me?
Who pays alimony? | Who do I pay alimony?
How do I move back to London? | How do I move to London?
How do I pay off my mortgage? | How do I pay my mortgage?
How many people have died as of March? | How many people have died since March?
Which banks no longer charge fees? | Which banks never charge fees?
Should I shower once a week? | Should I shower after a week?
What place did Usain Bolt finish in? | Where did Usain Bolt finish?
How do I get out of debt? | How do I get into debt?
Is it safe to drive in Mexico? | Is it safe to drive from Mexico?
Write a poem for my wife | Write a poem about my wife
How do I pay for Netflix? | How do I pay with Netflix?
How many Germans live in France? | How many French live in Germany?
How do I change your plan? | How do I change my plan?
What is the length of a flight to Rome? | How much is a flight to Rome?
How do I stop bleeding? | How do I prevent bleeding?
How do I recall an email? | How do I remember an email?
"""
_ALLOWED = """
Which company was LinkedIn acquired by? | Which company acquired LinkedIn?
Does the warranty cover water damage? | Is water damage covered by the warranty?
How do I round a float in JavaScript? | In JavaScript, how can I round a float?
How do I sort a Python dictionary? | How can I sort a dictionary in Python?
What is the price of gold? | What's the gold price?
Can I borrow a thousand euros? | Can I borrow 1,000 euros?
What are Berlin's main sights? | What are the main sights of Berlin?
How many vacation days do staff get after 5 years? | After 5 years, how many vacation days does staff get?
What is the difference between TCP and UDP? | What's the difference between UDP and TCP?
How tall is Kevin Durant? | What's Kevin Durant's height?
Who plays the villain? | Which actor plays the villain?
Can diabetics eat watermelon? | Is it okay for diabetics to eat watermelon?
Is it safe to eat raw kidney beans? | Are raw kidney beans safe to eat?
How do I permanently delete my account? | How can I delete my account permanently?
Which items other than food are taxed? | Which items apart from food are taxed?
What should I do prior to an exam? | What should I do before an exam?
Which cities have hosted both the Summer and Winter Olympics? | What cities have hosted the Summer and Winter Olympics?
I want to know how much a visa for Kenya costs | How much is a visa for Kenya?
Is there a way to recover deleted photos? | How do I recover deleted photos?
How far away is the moon? | How far is the moon?
What should I do if I lose my card? | What can I do if I lose my card?
Where can I download my invoice? | How can I download my invoice?
What causes thunder? | Why does thunder happen?
Is Python easy to learn? | Is it easy to learn Python?
Which is better, tea or coffee? | Is tea or coffee better?
What is the difference between TCP and UDP? | How do TCP and UDP differ?
What time does the store open? | When does the store open?
How do you unlock your phone? | How do I unlock my phone?
What can I plant in May? | What can you plant in May?
"""


def _pairs(lines: str) -> list[tuple[str, str]]:
    return [
        (one.strip(), other.strip()) for one, _, other in (line.partition("|") for line in lines.strip().splitlines())
    ]


def _unexplained(one: str, other: str) -> bool:
    return GUARDS["unexplained"](analyse(one), analyse(other))


@pytest.mark.parametrize(("one", "other"), _pairs(_FORBIDDEN))
def test_a_difference_that_may_matter_forbids(one: str, other: str) -> None:
    """Each of these was served by the version before, in a scope that had learned nothing."""
    assert _unexplained(one, other)
    assert _unexplained(other, one)


@pytest.mark.parametrize(("one", "other"), _pairs(_ALLOWED))
def test_what_english_lets_one_say_in_two_ways_is_explained(one: str, other: str) -> None:
    """A guard that knew only equal texts would be an exact cache."""
    assert not _unexplained(one, other)
    assert not _unexplained(other, one)


@pytest.mark.parametrize(
    ("file", "size", "missed", "explained"), [("fresh_near_misses", 920, 5, 330), ("later_near_misses", 650, 3, 160)]
)
def test_hardly_a_near_miss_is_explained_and_many_paraphrases_are(
    file: str, size: int, missed: int, explained: int
) -> None:
    """3,140 pairs of five authors who had not seen the guards; mended while looking at most of them, so not how fresh
    ones fare: docs/benchmarks.md says that."""
    found: dict[bool, Counter[bool]] = {True: Counter(), False: Counter()}
    for pair in read_pairs(_DATA / f"{file}.tsv"):
        a, b = analyse(pair.a), analyse(pair.b)
        found[pair.same][forbids(a, b) is None and not _unexplained(pair.a, pair.b)] += 1
    assert found[True].total() == found[False].total() == size
    assert found[False][True] <= missed
    assert found[True][True] >= explained
