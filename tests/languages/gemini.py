"""Google's generateContent as a fake: candidates of hashed words, cumulative usage, errors in its own shape."""

from typing import Any

import msgspec

from tests.wire_upstream import Answer, Request, count, words

encode = msgspec.json.encode


class Gemini:
    """Refuses what the service refuses without fail: a request without contents, a key in the address."""

    async def answer(self, asked: Request) -> Answer:
        if asked.line.startswith("GET "):
            models = [{"name": "models/gemini-fake", "supportedGenerationMethods": ["generateContent"]}]
            return Answer(body=encode({"models": models}))
        if asked.path.endswith(":batchEmbedContents"):
            rows = asked.body["requests"]
            if len(rows) > 100 or any(f"/{row['model']}:" not in asked.path for row in rows):
                return error("400 Bad Request", 400, "INVALID_ARGUMENT", "at most 100 requests can be in one batch")
            sizes = [row.get("outputDimensionality", 4) for row in rows]
            texts = [row["content"]["parts"][0]["text"] for row in rows]
            vectors = [
                [len(text) / 8 + place for place in range(size)] for text, size in zip(texts, sizes, strict=True)
            ]
            return Answer(body=encode({"embeddings": [{"values": vector} for vector in vectors]}))
        if asked.path.endswith(":countTokens"):
            texts = [content["parts"][0]["text"] for content in asked.body["contents"]]
            return Answer(body=encode({"totalTokens": sum(len(text.split()) for text in texts)}))
        contents, config = asked.body.get("contents"), asked.body.get("generationConfig", {})
        if not contents or "key=" in asked.path:
            return error("400 Bad Request", 400, "INVALID_ARGUMENT", "contents are required")
        choices, most = config.get("candidateCount", 1), config["maxOutputTokens"]
        said = [words([contents, choice], most) for choice in range(choices)]
        usage = {"promptTokenCount": count(contents), "candidatesTokenCount": most * choices}
        if not asked.path.partition("?")[0].endswith(":streamGenerateContent"):
            told = [candidate(choice, "".join(text), "MAX_TOKENS") for choice, text in enumerate(said)]
            return Answer(body=encode({"candidates": told, "usageMetadata": usage, "responseId": "r"}))
        events: list[bytes] = []
        for place in range(most):
            last = "MAX_TOKENS" if place == most - 1 else None
            for choice, text in enumerate(said):
                so_far = {**usage, "candidatesTokenCount": place * choices + choice + 1}
                told = [candidate(choice, text[place], last)]
                events.append(event({"candidates": told, "usageMetadata": so_far, "responseId": "r"}))
        return Answer(headers=("content-type: text/event-stream",), opening=events[0], events=events[1:])

    def failure(self) -> Answer:
        return error("503 Service Unavailable", 503, "UNAVAILABLE", "The model is overloaded.")


def candidate(index: int, text: str, finish: str | None) -> dict[str, Any]:
    made: dict[str, Any] = {"index": index, "content": {"role": "model", "parts": [{"text": text}]}}
    return {**made, "finishReason": finish} if finish else made


def error(status: str, code: int, kind: str, message: str) -> Answer:
    return Answer(status=status, body=encode({"error": {"code": code, "message": message, "status": kind}}))


def event(told: dict[str, Any]) -> bytes:
    return b"data: %b\r\n\r\n" % encode(told)


def answer(parts: list[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """The events of an answer with these parts, every text in pieces of `size` characters; calls come whole."""
    told: list[dict[str, Any]] = []
    for part in parts:
        whole = part.get("text")
        pieces = [part]
        if whole is not None:
            pieces = [{"text": whole[start : start + size]} for start in range(0, len(whole), size)]
        told += [{"candidates": [{"content": {"parts": [piece]}, "index": 0}]} for piece in pieces]
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 3}
    return [*told, {"candidates": [{"finishReason": "STOP", "index": 0}], "usageMetadata": usage}]


class Batches(Gemini):
    """The same with batches, which are over when they are looked at for the second time; `running` keeps them going."""

    def __init__(self) -> None:
        self.batches: dict[str, dict[str, Any]] = {}
        self.looks = 0
        self.running = False

    async def answer(self, asked: Request) -> Answer:
        path, verb = asked.path.partition("?")[0], asked.line.split()[0]
        if path.endswith(":batchGenerateContent"):
            name = f"batches/b{len(self.batches)}"
            self.batches[name] = {"asked": asked.body["batch"], "model": path, "state": "RUNNING"}
            return Answer(body=encode(self._shown(name)))
        if "/batches" not in path:
            return await super().answer(asked)
        if path.endswith("/batches"):
            return Answer(body=encode({"operations": [self._shown(name) for name in reversed(self.batches)]}))
        name = path[path.index("batches/") :].partition(":")[0]
        if verb == "DELETE":
            del self.batches[name]
            return Answer(body=b"{}")
        batch = self.batches[name]
        if path.endswith(":cancel"):
            batch["state"] = "CANCELLED"
            return Answer(body=b"{}")
        self.looks += 1
        if self.looks > 1 and not self.running and batch["state"] == "RUNNING":
            batch["state"] = "SUCCEEDED"
            batch["told"] = [await self._run(row) for row in batch["asked"]["inputConfig"]["requests"]["requests"]]
        return Answer(body=encode(self._shown(name)))

    async def _run(self, row: dict[str, Any]) -> dict[str, Any]:
        if "fail" in str(row["request"]["contents"]):
            return {"metadata": row["metadata"], "error": {"code": 8, "message": "Quota exceeded."}}
        told = await super().answer(Request("POST /x:generateContent HTTP/1.1", {}, row["request"]))
        return {"metadata": row["metadata"], "response": msgspec.json.decode(told.body)}

    def _shown(self, name: str) -> dict[str, Any]:
        batch = self.batches[name]
        told = {"displayName": batch["asked"]["displayName"], "state": f"BATCH_STATE_{batch['state']}"}
        told["createTime"] = "2026-11-22T10:00:00.123456789Z"
        if "told" in batch:
            told["output"] = {"inlinedResponses": {"inlinedResponses": batch["told"]}}
        return {"name": name, "metadata": told}
