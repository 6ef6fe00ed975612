"""Mistral's batch jobs: OpenAI's files, lines without address and model, and states of its own.

Knows: how a job is made, listed and told. Does not know: files, the order of steps (`gateway.upstream.openai_batches`).
Source: docs.mistral.ai/capabilities/batch; the shapes of its client, mistralai 3.7.0.
"""

from gateway.call import Body
from gateway.upstream.fields import objects, whole_number, words
from gateway.upstream.openai_batches import PAGE, OpenAIBatches

_OVER = {"SUCCESS": "completed", "FAILED": "failed", "TIMEOUT_EXCEEDED": "expired", "CANCELLED": "cancelled"}
_HOURS = 24


class MistralBatches(OpenAIBatches):
    """Obeys gateway.upstream.batching.Batching."""

    path = "batch/jobs"

    def _asked(self, name: str, body: Body, endpoint: str) -> Body:  # noqa: ARG002 - the job has the address
        return {"custom_id": name, "body": {key: value for key, value in body.items() if key != "model"}}

    def _wanted(self, name: str, file: str, endpoint: str, model: str) -> Body:
        wanted: Body = {"input_files": [file], "endpoint": endpoint, "model": model, "timeout_hours": _HOURS}
        return {**wanted, "metadata": {"nearhit": name}}

    def _page(self, number: int, last: str) -> str:  # noqa: ARG002 - pages are counted
        return f"page={number}&page_size={PAGE}&order_by=-created"

    def _has_more(self, number: int, page: Body) -> bool:
        return (whole_number(page.get("total")) or 0) > (number + 1) * PAGE

    def _as_openai(self, told: Body) -> Body:
        files = told.get("input_files")
        return {
            "status": _OVER.get(words(told.get("status")), "in_progress"),
            "errors": {"data": objects(told.get("errors"))},
            "input_file_id": files[0] if isinstance(files, list) and files else None,
            "output_file_id": told.get("output_file"),
            "error_file_id": told.get("error_file"),
        }
