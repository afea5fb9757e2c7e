"""Requests made up from the server's own description, right and wrong ones: answers are as described, no failure."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")
pytest.importorskip("schemathesis", reason="needs the package 'schemathesis'")

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks

from serving.server.clients import ALICE, bearer
from serving.stock import ENGINE_MARKS

pytestmark = ENGINE_MARKS
NUM_EXAMPLES = 10
CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.negative_data_rejection,
]


@pytest.fixture(scope="module")
def described(real: httpx.Client) -> Any:
    """The API, as its document tells it."""
    return schemathesis.openapi.from_dict(real.get("/openapi.json").json())


api = schemathesis.pytest.from_fixture("described")


def small(body: Any) -> Any:
    """The same request, but with little work where it asks for much; whatever is wrong with it stays wrong."""
    if not isinstance(body, dict):
        return body
    most: dict[str, Any] = {"steps": 2, "n": 2}
    limited = {name: min(body[name], limit) for name, limit in most.items() if type(body.get(name)) is int}
    size = {"size": "32x32"} if isinstance(body.get("size"), str) and "x" in body["size"] else {}
    return body | limited | size


def is_late(case: Any, answer: Any) -> bool:
    """Whether a request that has a deadline missed it, which is no failure of the server."""
    return answer.status_code == 504 and isinstance(case.body, dict) and case.body.get("deadline_s") is not None


@api.parametrize()
@settings(
    max_examples=NUM_EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
def test_no_request_that_can_be_described_breaks_the_server(case: Any, real: httpx.Client) -> None:
    if case.media_type == "application/json":
        case.body = small(case.body)
    answer = case.call(base_url=str(real.base_url), headers=bearer(ALICE))
    case.validate_response(answer, checks=CHECKS[1:] if is_late(case, answer) else CHECKS)


def test_all_that_is_served_is_described(real: httpx.Client) -> None:
    document = real.get("/openapi.json").json()
    statuses = {
        status for methods in document["paths"].values() for one in methods.values() for status in one["responses"]
    }

    assert set(document["paths"]) == {
        "/v1/images/generations",
        "/v1/images/edits",
        "/v1/images/variations",
        "/v1/adapters",
        "/v1/adapters/{name}",
        "/v1/adapters/{name}/{action}",
        "/v1/files/{name}",
        "/v1/jobs/{id}",
        "/v1/templates",
        "/v1/templates/{template}",
        "/v1/models",
        "/v1/models/{model}",
        "/v1/requests/{id}/events",
        "/health",
        "/ready",
        "/metrics",
    }
    assert "422" not in statuses
    assert {"400", "401", "404", "429", "503"} <= statuses
