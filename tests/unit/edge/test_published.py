"""nearhit's own description beside the published shapes: names, what is required, types. Each difference is wanted."""

from typing import Any, NamedTuple

from gateway.web.described import described
from tests.shapes.published import OPERATIONS, Operation, Published

Json = dict[str, Any]
KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


class Difference(NamedTuple):
    """`needed` here and not there; `own` fields; `narrower`: what is documented there and refused here."""

    needed: set[str]
    own: set[str]
    narrower: set[str]


# `stream` is published too, apart from the other fields. A template of a caller's is refused by name, as are prompts as
# vectors. A form's file stands in no schema of the clients. Models have no default here but for moderations.
STREAMED, FORM = {"stream"}, {"file"}
# The two small operations of a dialect are described as its main one, and know what has no meaning there.
COMPACT = {
    "background", "conversation", "include", "max_output_tokens", "metadata", "moderation", "parallel_tool_calls",
    "prompt", "reasoning", "safety_identifier", "store", "stream", "temperature", "text", "tool_choice", "tools",
    "top_logprobs", "top_p", "truncation", "user",
}  # fmt: skip
COUNT = {
    "background", "include", "max_output_tokens", "metadata", "moderation", "prompt", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier", "store", "stream",
    "temperature", "top_logprobs", "top_p", "user",
}  # fmt: skip
SAMPLED = {"output_format", "stream", "temperature", "top_k", "top_p"}  # told apart from others by the newest models
WANTED = {
    "/v1/chat/completions": Difference(set(), {"chat_template"} | STREAMED, set()),
    "/v1/completions": Difference(set(), {"chat_template", "prompt_embeds"} | STREAMED, {"prompt: null"}),
    "/v1/responses": Difference({"input", "model"}, STREAMED, set()),
    "/v1/responses/compact": Difference({"input"}, COMPACT, {"input: null", "model: null"}),
    "/v1/responses/input_tokens": Difference({"input", "model"}, COUNT, {"input: null", "model: null"}),
    "/v1/images/generations": Difference({"model"}, STREAMED, {"model: null"}),
    "/v1/audio/transcriptions": Difference({"file", "model"}, FORM, set()),
    "/v1/audio/translations": Difference({"file", "model"}, FORM, set()),
    "/v1/images/edits": Difference({"image", "model", "prompt"}, {"image", "mask"}, {"model: null"}),
    "/v1/images/variations": Difference({"image", "model"}, {"image"}, {"model: null"}),
    "/v1/files": Difference({"file", "purpose"}, FORM, set()),
    "/v1/messages": Difference(set(), SAMPLED, set()),
    "/v1/messages/count_tokens": Difference(
        set(), SAMPLED | {"max_tokens", "metadata", "service_tier", "stop_sequences"}, set()
    ),
}
NONE = Difference(set(), set(), set())


def resolved(schema: Json, components: Json) -> Json:
    return components[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def kinds(schema: Json, components: Json) -> set[str]:
    """JSON's types that a schema lets through; empty where it says nothing."""
    found = resolved(schema, components)
    for name in ("anyOf", "oneOf", "allOf"):
        if name in found:
            return {kind for one in found[name] for kind in kinds(one, components)}
    if "enum" in found or "const" in found:
        return {KINDS[type(value)] for value in found.get("enum", [found.get("const")])}
    told = found.get("type", [])
    named = {told} if isinstance(told, str) else set(told)
    return named | {"integer"} if "number" in named else named


def difference(operation: Operation, published: Published, own: Json) -> Difference:
    components = own["components"]["schemas"]
    (content,) = own["paths"][operation.path]["post"]["requestBody"]["content"].values()
    ours = resolved(content["schema"], components)
    theirs, needed = published.fields(operation), published.needed(operation)
    narrower = {
        f"{name}: {kind}"
        for name in ours["properties"].keys() & theirs.keys()
        if (taken := kinds(ours["properties"][name], components))
        for kind in kinds(theirs[name], published.components) - taken
    }
    return Difference(set(ours.get("required", [])) - needed, set(ours["properties"]) - set(theirs), narrower)


def test_the_own_description_differs_from_the_published_only_where_it_should() -> None:
    """A client generated from nearhit's document must be able to send what one of OpenAI's or Anthropic's may."""
    own: Json = described({})
    published = Published()
    posted = [one for one in OPERATIONS if one.takes is not None and one.verb == "post"]
    found = {one.path: difference(one, published, own) for one in posted}
    beyond = {
        path: [more - known for more, known in zip(told, WANTED.get(path, NONE), strict=True)]
        for path, told in found.items()
    }
    assert beyond == {path: [set(), set(), set()] for path in found}
