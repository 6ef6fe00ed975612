"""Keys of the beginnings of a prompt, made in a few microseconds however long it is.

Pieces are short where a prompt begins and longer further in: 64 characters up to 512, 512 up to 8,192, then 4,096, of
which the first and the last 128 are looked at. So deep in a prompt a change in the middle of a piece is overlooked
while nothing after it moves; a replica is then thought to hold more than it does, which costs a prefill and no answer.
Keys are of one process only. Does not know: what a prompt is, who holds what (`policies.routing.affinity`).
"""

_FINE, _WHOLE, _LAST = 512, 8_192, 262_144
_STEP, _LOOKED = 4_096, 128
_READ = [(at, at + 64) for at in range(0, _FINE, 64)] + [(at, at + 512) for at in range(_FINE, _WHOLE, 512)]
_LOOKED_AT = range(_WHOLE + _STEP, _LAST + 1, _STEP)
ENDS = (*(end for _, end in _READ), *_LOOKED_AT)  # characters up to the end of each piece


def beginnings(text: str, salt: str) -> list[int]:
    """One key for every whole piece, at most 85; equal keys mean an equal beginning (see above) under one `salt`."""
    size, key = len(text), hash(salt)
    found: list[int] = []
    for begin, end in _READ:
        if end > size:
            return found
        key = hash((key, text[begin:end]))
        found.append(key)
    for end in _LOOKED_AT:
        if end > size:
            break
        key = hash((key, text[end - _STEP : end - _STEP + _LOOKED], text[end - _LOOKED : end]))
        found.append(key)
    return found
