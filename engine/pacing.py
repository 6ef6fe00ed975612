"""How much of a prompt may join a step without those who decode noticing, and how long a backlog will take.

Knows: measured seconds of steps. Does not know: clocks, sequences, blocks.

A step that also reads a prompt lasts longer, and everybody who decodes in it waits. So the share of a step that a
prompt gets follows from what was measured: a step may last `STRETCH` times a step that only decodes. Where one block of
a prompt takes longer than that, as far into a long prompt, it is computed over several steps, a `part` of it in each.
Where nobody decodes a step is bounded too, by `LONGEST`.
"""

from engine.blocks import BLOCK

STRETCH = 2.0
LONGEST = 0.5  # seconds of a step that only reads prompts: newcomers wait for it, and no step at all looks like death
_SMOOTH = 0.2
_ASSUMED_PROMPT_S = 0.002  # seconds per prompt token, until something was measured
_ASSUMED_DECODE_S = 0.02  # seconds per step that only decodes, likewise


class Pace:
    """Fed with every step by `observe`. All times are seconds; a step of no length says nothing."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """As new: what was measured while kernels were still being made says nothing about later steps."""
        self._decode = 0.0
        self._prompt = 0.0
        self._decodes = 1.0  # sequences that a decoding step serves

    def observe(self, decodes: int, prompt: float, seconds: float) -> None:
        """`decodes` rows that decode and `prompt` tokens of prompts, whole or in part, took a step of `seconds`."""
        if seconds <= 0:
            return
        if prompt == 0:
            self._decode = _blend(self._decode, seconds)
        else:
            each = max(seconds - (self._decode if decodes else 0.0), 0.0) / prompt
            # A longer context makes every further token dearer: what grows is believed at once.
            self._prompt = max(each, _blend(self._prompt, each))
        if decodes:
            self._decodes = _blend(self._decodes, decodes)

    def chunk(self, most: int) -> int:
        """Prompt tokens that may join a step which decodes: whole blocks, at least one, at most `most`."""
        if not self._decode or not self._prompt:
            return most
        return min(max(int(self._fitting()) // BLOCK * BLOCK, BLOCK), most)

    def part(self) -> float:
        """How much of one block may join a step which decodes: above 0, at most 1."""
        return min(self._fitting() / BLOCK, 1.0) if self._decode and self._prompt else 1.0

    def _fitting(self) -> float:
        """Prompt tokens that take as long as a step which decodes may be longer."""
        return (STRETCH - 1) * self._decode / self._prompt

    def alone(self, most: int) -> int:
        """Prompt tokens of a step in which nobody decodes: whole blocks, at least one, at most `most`."""
        if not self._prompt:
            return most
        return min(max(int(LONGEST / self._prompt) // BLOCK * BLOCK, BLOCK), most)

    def backlog(self, prompt: int, output: int) -> float:
        """Seconds until `prompt` tokens are read and `output` tokens written, side by side as measured so far."""
        prompt_s = self._prompt or _ASSUMED_PROMPT_S
        decode_s = self._decode or _ASSUMED_DECODE_S
        return prompt * prompt_s + output * decode_s / max(self._decodes, 1.0)


def _blend(old: float, new: float) -> float:
    return new if old == 0 else old + (new - old) * _SMOOTH
