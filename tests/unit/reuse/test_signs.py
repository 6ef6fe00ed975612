"""Typography and spelling of quantities tell no questions apart; signs, operators, quotations and denials do."""

import pytest

from policies.reuse.facts import analyse
from policies.reuse.guards import GUARDS

# Guard, one text, another, whether the guard speaks.
_SPOKEN = [
    # A hyphen is no minus.
    ("quote", "Plan a 5-day walk in Wales for 2 people.", "Plan a five day walk in Wales for 2 people.", False),
    ("quote", "What helps 6-year-olds fall asleep?", "What helps 6 year olds fall asleep?", False),
    ("quote", "A semi-retired nurse earns 900 a month.", "A semi retired nurse earns 900 a month.", False),
    ("quote", "My phone has iOS 17 - why is it slow?", "My phone has iOS 17, why is it slow?", False),
    ("quote", "Is a 24-volt pump right here?", "Is a 24 V pump right here?", False),
    ("quote", "What is 20 - 5?", "What is 20 + 5?", True),
    ("quote", "Simplify 4a-3b over 2.", "Simplify 4a+3b over 2.", True),
    ("quote", "Can the battery be charged at -5 degrees?", "Can the battery be charged at 5 degrees?", True),
    ("quote", "Is total - 5 right here?", "Is total + 5 right here?", True),
    # Nor does a stroke between two units divide.
    ("quote", "How far is 90 km/h in 2 hours?", "How far is 90 kilometres per hour in 2 hours?", False),
    ("quote", "Plot tan(x)/x from 1 to 9.", "Plot tan(x)*x from 1 to 9.", True),
    # What a sign says, words may say as well.
    ("quote", "Which tent costs less than $300?", "Which tent costs less than 300 dollars?", False),
    ("quote", "Which tent costs less than $300?", "Which tent costs less than 300 euros?", True),
    ("quote", "Which tent costs less than $300?", "Which tent costs less than \u20ac300?", True),
    ("quote", "Which tent costs less than $300?", "Which tent costs less than 300?", True),
    ("quote", "What percent of 40 is 10?", "What percentage of 40 is 10?", False),
    ("quote", "Roast it at 200\u00b0 for an hour", "Roast it at 200 degrees for an hour", False),
    ("quote", "How much is $90 in euros?", "How much is \u20ac90 in dollars?", True),
    ("quote", "How much is $90 in euros?", "How much is 90 dollars in euros?", False),
    # A stop at the end of a quotation is the sentence's.
    ("quote", 'Translate "We are late." into Dutch', 'Translate "We are late" into Dutch', False),
    ("quote", 'Translate "We are late." into Dutch', 'Translate "We were late." into Dutch', True),
    ("quote", "What does '?' mean in Rust?", "What does '!' mean in Rust?", True),
    # "One" stands for a thing that was named.
    ("number", "How does a brown bear differ from a polar one?", "How do brown and polar bears differ?", False),
    ("number", "Is hiring a van for 2 days cheaper than buying one?", "Is it cheaper to hire a van for 2 days?", False),
    ("number", "Summarise volume one of 3 for me", "Summarise volume 2 of 3 for me", True),
    ("number", "Turn the oven to 180 degrees celsius", "Turn the oven to 180 celsius", False),
    ("number", "Turn the oven to 180 degrees celsius", "Turn the oven to 180 fahrenheit", True),
    # Days of a month.
    ("number", "My visa ends on 3 June, may I stay?", "My visa ends on June 3. May I stay?", False),
    ("number", "My visa ends on 3 June, may I stay?", "My visa ends on June 5. May I stay?", True),
    ("number", "Is the lens under 200 dollars any good?", "Is the lens for $200 is worth it?", False),
    # To stop it from happening is to prevent it.
    ("negation", "How do I prevent bread from drying out?", "How do I stop bread from drying out?", False),
    ("negation", "How do I prevent the tap dripping?", "How can I stop the tap dripping?", False),
    ("negation", "How do I prevent bread from drying out?", "How do I dry bread out?", True),
    ("negation", "Does the tram not stop at the building?", "Does the tram stop at the building?", True),
    # Who speaks of failure in both has denied it in one.
    ("negation", "What if my offer is rejected?", "What if my offer is not rejected?", True),
    ("negation", "Why did the upload fail?", "Why did the upload not fail?", True),
    ("negation", "Why did the upload not go through?", "Why did the upload fail?", False),
]


@pytest.mark.parametrize(("guard", "one", "other", "speaks"), _SPOKEN)
def test_what_is_only_spelled_otherwise_is_let_through(guard: str, one: str, other: str, speaks: bool) -> None:
    """An amount written in another way was another question, and "is not declined" was no denial of "is declined"."""
    for a, b in ((one, other), (other, one)):
        assert GUARDS[guard](analyse(a), analyse(b)) is speaks, (a, b)
