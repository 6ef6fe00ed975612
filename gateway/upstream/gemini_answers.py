"""Google's generateContent answers as chat completions: whole, as events, and when they refuse.

Knows: candidates and parts, finish reasons, blocked prompts, usage with its cached and thinking tokens, errors and when
they may be tried again. Does not know: HTTP, requests.
Source: Google's Gemini API reference (v1beta): GenerateContentResponse, errors, RetryInfo.
"""

import re
from typing import cast

import msgspec

from gateway.call import Body, Chunk
from gateway.errors import GatewayError, Overloaded, UpstreamRefused
from gateway.stream import StreamGarbage, parse
from gateway.transport.refusal import in_band_message, refused, retry_after
from gateway.upstream.fields import mapping, objects, whole_number, words
from gateway.upstream.native import Answered
from gateway.upstream.reader import Declined
from gateway.upstream.telling import Telling, whole

_FILTERED = frozenset(
    {
        "SAFETY",
        "RECITATION",
        "LANGUAGE",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
        "MODEL_ARMOR",
    }
)
_NOT_BEGUN = frozenset({"RESOURCE_EXHAUSTED", "UNAVAILABLE"})
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
_TIERS = {"standard": "default", "flex": "flex", "priority": "priority"}
_BY_PROMPT = re.compile(r"gemini-[12]\.")
_TOO_LONG = re.compile(r"exceeds the maximum number of tokens|input token count")
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)s")
_encode = msgspec.json.Encoder().encode


class Events:
    """The events of one answer. The stream has no end mark of its own: it ends with the connection, all finished."""

    def __init__(self, model: str, created: float) -> None:
        self.done = False
        self._telling = Telling(model, created)
        self._usage: Body = {}
        self._grounded: dict[int, Body] = {}
        self._by_prompt = _BY_PROMPT.search(model) is not None

    def feed(self, data: bytes) -> list[Chunk]:
        return self.read(parse(data))

    def read(self, event: Body) -> list[Chunk]:
        """An event, or a whole answer, which has the same shape."""
        if event.get("error"):
            raise _failure(event)
        head = self._telling.head
        head["id"] = head["id"] or words(event.get("responseId"))
        # Counts are cumulative; the last ones told hold.
        self._usage |= mapping(event.get("usageMetadata"))
        chunks: list[Chunk] = []
        for candidate in objects(event.get("candidates")):
            chunks += self._candidate(candidate, whole_number(candidate.get("index")) or 0)
        blocked = words(mapping(event.get("promptFeedback")).get("blockReason"))
        if blocked and not event.get("candidates"):
            chunks += self._telling.finish("content_filter", extra={"native_finish_reason": blocked})
        return chunks

    def end(self) -> list[Chunk]:
        if not self._telling.finished:
            raise StreamGarbage("closed the connection before its answer was whole")
        self.done = True
        usage = usage_of(self._usage)
        if usage is not None:
            usage |= self._searched()
        tier = words(self._usage.get("serviceTier")).lower().removeprefix("service_tier_")
        told = _TIERS.get(tier)
        return self._telling.usage(usage, {"service_tier": told} if told else None)

    def _searched(self) -> Body:
        """Google bills each search, of older models each prompt that led to any; its maps have prices of their own."""
        told_queries = [told.get("webSearchQueries") for told in self._grounded.values()]
        web = sum(len(cast("list[object]", queries)) for queries in told_queries if isinstance(queries, list))
        found: Body = {"server_tool_use": {"web_search_requests": 1 if self._by_prompt else web}} if web else {}
        sources = [chunk for told in self._grounded.values() for chunk in objects(told.get("groundingChunks"))]
        return found | ({"unpriced_calls": 1} if any("maps" in source for source in sources) else {})

    def _candidate(self, candidate: Body, choice: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        for part in objects(mapping(candidate.get("content")).get("parts")):
            chunks += self._part(part, choice)
        if result := mapping(candidate.get("logprobsResult")):
            chunks += self._telling.scored(_scores(result), choice)
        reason = words(candidate.get("finishReason"))
        if not reason:
            return chunks
        extra: Body = {}
        if reason == "STOP":
            finish = "tool_calls" if self._telling.calls(choice) else "stop"
        elif reason == "MAX_TOKENS":
            finish = "length"
        else:
            finish = "content_filter" if reason in _FILTERED else "stop"
            extra["native_finish_reason"] = reason
        if candidate.get("groundingMetadata"):
            extra["grounding_metadata"] = candidate["groundingMetadata"]
            self._grounded[choice] = mapping(candidate["groundingMetadata"])
        return chunks + self._telling.finish(finish, choice, extra)

    def _part(self, part: Body, choice: int) -> list[Chunk]:
        telling = self._telling
        if "text" in part:
            text = words(part["text"])
            if part.get("thought") is True:
                return telling.more({"reasoning_content": text}, choice) if text else []
            return telling.text(text, choice)
        if isinstance(part.get("functionCall"), dict):
            call = mapping(part["functionCall"])
            signature = part.get("thoughtSignature")
            extra: Body = {"extra_content": {"google": {"thought_signature": signature}}} if signature else {}
            told = words(call.get("id")) or f"call_{telling.head['id']}_{choice}_{telling.calls(choice)}"
            place, chunks = telling.call(told, words(call.get("name")), choice, extra)
            return [*chunks, *telling.arguments(place, _encode(mapping(call.get("args"))).decode(), choice)]
        if isinstance(part.get("inlineData"), dict):
            data = mapping(part["inlineData"])
            url = f"data:{words(data.get('mimeType'))};base64,{words(data.get('data'))}"
            return telling.more({"images": [{"type": "image_url", "image_url": {"url": url}}]}, choice)
        blocks = {name: value for name, value in part.items() if name != "thoughtSignature"}
        return telling.more({"native_blocks": [blocks]}, choice) if blocks else []


def body_of(answer: Body, model: str, created: float) -> Chunk:
    """An answer that was not streamed, as one chat completion. Raises StreamGarbage for anything else."""
    events = Events(model, created)
    chunks = events.read(answer)
    if not chunks:
        raise StreamGarbage(f"failed: {in_band_message(answer)}")
    return whole([*chunks, *events.end()])


def _scores(result: Body) -> list[Body]:
    """Each token with those that were likely in its place."""
    tops = [objects(row.get("candidates")) for row in objects(result.get("topCandidates"))]
    found: list[Body] = []
    for place, chosen in enumerate(objects(result.get("chosenCandidates"))):
        others = tops[place] if place < len(tops) else []
        found.append({**_score(chosen), "top_logprobs": [_score(other) for other in others]})
    return found


def _score(candidate: Body) -> Body:
    token = words(candidate.get("token"))
    return {
        "token": token,
        "logprob": candidate.get("logProbability") or 0.0,
        "bytes": list(token.encode("utf-8", "replace")),
    }


def usage_of(told: Body) -> Body | None:
    """OpenAI's usage: thinking is output there, and what tools put into the prompt is input. None without counts."""
    prompt = whole_number(told.get("promptTokenCount"))
    if prompt is None:
        return None
    prompt += whole_number(told.get("toolUsePromptTokenCount")) or 0
    thought = whole_number(told.get("thoughtsTokenCount")) or 0
    made = (whole_number(told.get("candidatesTokenCount")) or 0) + thought
    read, written = told.get("promptTokensDetails"), told.get("candidatesTokensDetails")
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {
            "cached_tokens": whole_number(told.get("cachedContentTokenCount")) or 0,
            "audio_tokens": _of_kind(read, "AUDIO"),
            "image_tokens": _of_kind(read, "IMAGE"),
        },
        "completion_tokens_details": {
            "reasoning_tokens": thought,
            "audio_tokens": _of_kind(written, "AUDIO"),
            "image_tokens": _of_kind(written, "IMAGE"),
        },
    }


def _of_kind(details: object, modality: str) -> int:
    rows = [row for row in objects(details) if row.get("modality") == modality]
    return sum(whole_number(row.get("tokenCount")) or 0 for row in rows)


def refusal(name: str, answered: Answered) -> GatewayError:
    """A refusal with OpenAI's codes. 503 is the upstream's own overload: another candidate may be tried at once."""
    error = refused(name, answered.status, answered.headers, answered.raw)
    if answered.status == 503:
        wait = retry_after(answered.headers)
        return Overloaded(error.message, headers=(("retry-after", str(max(1, round(wait or 1)))),))
    if not isinstance(error, UpstreamRefused):
        return error
    details = _details(answered.raw)
    status = answered.status
    if any(detail.get("reason") == "API_KEY_INVALID" for detail in details):
        # Told as a fault of the request (400), though it is ours: the key that was sent with it.
        status = 401
    code = _CODES.get(status)
    if status == 400 and _TOO_LONG.search(error.message):
        code = "context_length_exceeded"
    kind = _TYPES.get(status, "invalid_request_error")
    wait = error.retry_after
    if wait is None:
        wait = next((found for detail in details if (found := _delay(detail)) is not None), None)
    return UpstreamRefused(
        status, {"message": error.message, "type": kind, "param": None, "code": code}, retry_after=wait
    )


def _details(raw: bytes) -> list[Body]:
    try:
        return objects(mapping(parse(raw).get("error")).get("details"))
    except StreamGarbage:
        return []


def _delay(detail: Body) -> float | None:
    """`"13.5s"` of a RetryInfo, in seconds."""
    found = _SECONDS.fullmatch(words(detail.get("retryDelay")))
    return float(found[1]) if found else None


def _failure(event: Body) -> StreamGarbage:
    message = f"failed: {in_band_message(event)}"
    return Declined(message) if mapping(event.get("error")).get("status") in _NOT_BEGUN else StreamGarbage(message)
