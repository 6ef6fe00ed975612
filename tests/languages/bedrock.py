"""Amazon Bedrock's Converse as a fake: frames with real checksums, hashed words, exceptions in its own shape."""

import struct
import zlib
from typing import Any

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
