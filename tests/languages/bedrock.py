"""Amazon Bedrock's Converse as a fake: frames with real checksums, hashed words, exceptions in its own shape."""

import hashlib
import struct
import zlib
from typing import Any
from urllib.parse import unquote

import msgspec

from tests.wire_upstream import Answer, Request, count, words

encode = msgspec.json.encode


class Bedrock:
    """Refuses what the service refuses without fail: a request without messages, an unknown method."""

    async def answer(self, asked: Request) -> Answer:
        body = asked.body
        if asked.path.endswith("/invoke"):
            return embedded(asked)
        if not body.get("messages") or not asked.path.startswith("/model/"):
            return error("400 Bad Request", "ValidationException", "messages are required")
        said = words(body["messages"], body["inferenceConfig"]["maxTokens"])
        prompt = count(body["messages"])
        usage = {"inputTokens": prompt, "outputTokens": len(said), "totalTokens": prompt + len(said)}
        if asked.path.endswith("/converse"):
            message = {"role": "assistant", "content": [{"text": "".join(said)}]}
            return Answer(body=encode({"output": {"message": message}, "stopReason": "max_tokens", "usage": usage}))
        events = [
            frame("messageStart", {"role": "assistant"}),
            *(frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": word}}) for word in said),
            frame("contentBlockStop", {"contentBlockIndex": 0}),
            frame("messageStop", {"stopReason": "max_tokens"}),
            frame("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}),
        ]
        kind = ("content-type: application/vnd.amazon.eventstream",)
        return Answer(headers=kind, opening=b"".join(events[:2]), events=events[2:])

    def failure(self) -> Answer:
        return error("503 Service Unavailable", "ServiceUnavailableException", "try again")


def embedded(asked: Request) -> Answer:
    """One vector of a text that Titan is asked, up to 96 of texts that Cohere is; both count words, in a header too."""
    body, titan = asked.body, "titan" in asked.path
    texts = [body["inputText"]] if titan else body["texts"]
    if not titan and (len(texts) > 96 or body["input_type"] not in ("search_document", "search_query")):
        return error("400 Bad Request", "ValidationException", "at most 96 texts of a known type")
    size = body.get("dimensions" if titan else "output_dimension", 4)
    vectors = [[len(text) / 8 + place for place in range(size)] for text in texts]
    count = sum(len(text.split()) for text in texts)
    counted = (f"X-Amzn-Bedrock-Input-Token-Count: {count}",)
    if titan:
        return Answer(headers=counted, body=encode({"embedding": vectors[0], "inputTextTokenCount": count}))
    return Answer(headers=counted, body=encode({"embeddings": vectors, "response_type": "embeddings_floats"}))


def error(status: str, kind: str, message: str) -> Answer:
    return Answer(status=status, headers=(f"x-amzn-errortype: {kind}:http://x",), body=encode({"message": message}))


def frame(name: str, body: dict[str, Any], kind: str = "event") -> bytes:
    """One frame of the event stream, as the service writes it."""
    told = {
        f":{kind}-type": name,
        ":content-type": "application/json",
        ":message-type": kind,
    }
    headers = b"".join(
        bytes([len(key)]) + key.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for key, value in told.items()
    )
    payload = encode(body)
    head = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    whole = head + struct.pack(">I", zlib.crc32(head)) + headers + payload
    return whole + struct.pack(">I", zlib.crc32(whole))


def answer(blocks: list[dict[str, Any]], size: int) -> list[bytes]:
    """The frames of an answer with these blocks, every text and input in pieces of `size` characters."""
    told = [frame("messageStart", {"role": "assistant"})]
    for index, block in enumerate(blocks):
        used = block.get("toolUse")
        whole = encode(used["input"]).decode() if used else block["text"]
        if used:
            start = {"toolUse": {"toolUseId": used["toolUseId"], "name": used["name"]}}
            told.append(frame("contentBlockStart", {"contentBlockIndex": index, "start": start}))
        for at in range(0, len(whole), size):
            piece = whole[at : at + size]
            delta = {"toolUse": {"input": piece}} if used else {"text": piece}
            told.append(frame("contentBlockDelta", {"contentBlockIndex": index, "delta": delta}))
        told.append(frame("contentBlockStop", {"contentBlockIndex": index}))
    told.append(frame("messageStop", {"stopReason": "end_turn"}))
    return [*told, frame("metadata", {"usage": {"inputTokens": 1, "outputTokens": 3, "totalTokens": 4}})]


class Batches(Bedrock):
    """The same with jobs at `/jobs` and buckets at `/s3`: over when looked at twice; `running` keeps them going.

    `refuses`: jobs of fewer records are; `lose`: the answer to the next job that is made.
    """

    def __init__(self, refuses: int = 1) -> None:
        self.objects: dict[str, bytes] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.asked_jobs = 0
        self.looks = 0
        self.running = False
        self.refuses = refuses
        self.lose = False
        self.billed: list[dict[str, int]] = []

    async def answer(self, asked: Request) -> Answer:
        path = unquote(asked.path.partition("?")[0])
        if path.startswith("/s3/"):
            return self._object(asked, path.removeprefix("/s3/"))
        if path.startswith("/jobs/"):
            assert "Credential=" in asked.headers["authorization"]
            return await self._job(asked, path.removeprefix("/jobs/model-invocation-job").removeprefix("/"))
        return await super().answer(asked)

    def _object(self, asked: Request, key: str) -> Answer:
        content = asked.body or b""
        told = asked.headers["x-amz-content-sha256"]
        if "/s3/aws4_request" not in asked.headers["authorization"] or told != hashlib.sha256(content).hexdigest():
            return Answer(status="403 Forbidden", body=b"<?xml?><Error><Code>AccessDenied</Code></Error>")
        if asked.line.startswith("PUT "):
            self.objects[key] = content
            return Answer()
        if asked.line.startswith("DELETE "):
            self.objects.pop(key, None)
            return Answer(status="204 No Content")
        if key not in self.objects:
            missing = b"<?xml?><Error><Code>NoSuchKey</Code><Message>The key does not exist.</Message></Error>"
            return Answer(status="404 Not Found", body=missing)
        return Answer(body=self.objects[key])

    async def _job(self, asked: Request, rest: str) -> Answer:
        if asked.line.startswith("POST ") and not rest:
            return self._made(asked.body)
        if rest == "s":  # the list
            wanted = asked.path.partition("nameContains=")[2]
            rows = [job for job in self.jobs.values() if wanted in job["jobName"]]
            return Answer(body=encode({"invocationJobSummaries": rows}))
        arn, stop = (rest.removesuffix("/stop"), rest.endswith("/stop"))
        job = self.jobs[arn]
        if stop:
            job["status"] = "Stopped"
            return Answer()
        self.looks += 1
        if self.looks > 1 and not self.running and job["status"] == "InProgress":
            await self._run(job)
        return Answer(body=encode(job))

    def _made(self, body: dict[str, Any]) -> Answer:
        for job in self.jobs.values():
            if job["clientRequestToken"] == body["clientRequestToken"]:
                return Answer(body=encode({"jobArn": job["jobArn"]}))
        key = body["inputDataConfig"]["s3InputDataConfig"]["s3Uri"].removeprefix("s3://")
        if len(self.objects[key].splitlines()) < self.refuses:
            return error("400 Bad Request", "ValidationException", f"at least {self.refuses} records are wanted")
        arn = f"arn:aws:bedrock:eu-central-1:123456789012:model-invocation-job/job{len(self.jobs)}"
        self.jobs[arn] = {**body, "jobArn": arn, "status": "InProgress"}
        self.asked_jobs += 1
        if self.lose:
            self.lose = False
            return error("504 Gateway Timeout", "", "")
        return Answer(body=encode({"jobArn": arn}))

    async def _run(self, job: dict[str, Any]) -> None:
        source = job["inputDataConfig"]["s3InputDataConfig"]["s3Uri"].removeprefix("s3://")
        told: list[bytes] = []
        for line in self.objects[source].splitlines():
            record = msgspec.json.decode(line)
            if "fail" in str(record["modelInput"]["messages"]):
                told.append(encode({**record, "error": {"errorCode": 400, "errorMessage": "bad request"}}))
                continue
            path = "POST /model/m/converse HTTP/1.1"
            output = msgspec.json.decode((await super().answer(Request(path, {}, record["modelInput"]))).body)
            self.billed.append(output["usage"])
            told.append(encode({**record, "modelOutput": output}))
        folder = job["outputDataConfig"]["s3OutputDataConfig"]["s3Uri"].removeprefix("s3://")
        out = f"{folder}{job['jobArn'].rpartition('/')[2]}"
        self.objects[f"{out}/requests.jsonl.out"] = b"\n".join(reversed(told))
        self.objects[f"{out}/manifest.json.out"] = b"{}"
        job["status"] = "PartiallyCompleted" if len(told) > len(self.billed) else "Completed"
