"""Labels that become known after their requests, joined by the request id."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from fastapi import APIRouter, Request

from gauntlet.core.signature import Signature
from gauntlet.request_log.log_format import logged_id
from serving.body import received_message
from serving.errors import InvalidRequest, NotLogged, Overloaded
from serving.gate import NOTES
from serving.protocol import ErrorResponse, FeedbackRequest, FeedbackResponse
from serving.repository import Repository
from serving.request_log.writer import FLUSH_S, RequestLog

router = APIRouter(prefix="/v2/models", tags=["feedback"])
SCHEMA = {"schema": FeedbackRequest.model_json_schema()}
BODY = {"requestBody": {"required": True, "content": {"application/json": SCHEMA}}}


@router.post(
    "/{name}/feedback",
    status_code=202,
    openapi_extra=BODY,
    responses={409: {"model": ErrorResponse, "description": "the server keeps no request log"}},
)
async def feedback(name: str, request: Request) -> FeedbackResponse:
    """Log the right classes of earlier requests; those that the log does not have are ignored when it is read."""
    repository: Repository = request.app.state.repository
    request_log: RequestLog | None = request.app.state.request_log
    model = repository.model(name)
    if request_log is None:
        raise NotLogged("this server keeps no request log; start it with --request-log FOLDER")
    if model.signature.task != "classification":
        raise InvalidRequest(f"labels are joined for classification; model '{name}' is for {model.signature.task}")
    message = await received_message(request, repository.limits, FeedbackRequest)
    client = request.scope[NOTES].get("client", "")
    versions = [repository.model(name, request_id=entry.request_id) for entry in message.feedback]
    for one in set(versions):  # a canary may have other classes
        its_own = (e.labels for e, version in zip(message.feedback, versions, strict=True) if version is one)
        require_known(chain.from_iterable(its_own), model.signature, one.signature)
    entries = [(logged_id(client, e.request_id), tuple(e.labels)) for e in message.feedback]
    sampled = [(request_id, labels) for request_id, labels in entries if request_log.samples(request_id)]
    for number, (request_id, labels) in enumerate(sampled):
        if not request_log.add_feedback(request_id, labels):
            text = f"the log's queue is full: {number} of {len(sampled)} are logged; send the others again"
            raise Overloaded(text, FLUSH_S)
    return FeedbackResponse(accepted=len(sampled), not_sampled=len(entries) - len(sampled))


def require_known(labels: Iterable[int | str], *versions: Signature) -> None:
    """Raise `InvalidRequest` for a label that none of the versions has, or several of one version's classes."""
    counts, classes = [Counter(version.labels) for version in versions], max(len(v.labels) for v in versions)
    for label in dict.fromkeys(labels):
        known = max(count[label] for count in counts) if isinstance(label, str) else 0 <= label < (classes or label + 1)
        if known > 1:
            raise InvalidRequest(f"label {str(label)[:80]!r} is the name of {known} classes. Fix: send the index")
        if not known:
            names = list(dict.fromkeys(name for version in versions for name in version.labels))
            allowed = f"names are {', '.join(names[:20])}; indices 0 to {classes - 1}" if names else "indices from 0"
            raise InvalidRequest(f"label {str(label)[:80]!r} is no class of the model; allowed {allowed}")
