"""FastAPI dependencies of the routes: the tenant of the API key, the request id, and the service."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import Depends, Header, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from takeup.serving.server.errors import REFUSED, ApiError
from takeup.serving.server.service import Caller, Service
from takeup.serving.server.tenants import ApiKeys

BEARER = HTTPBearer(auto_error=False, description="A key that the operator gave you.")
REQUEST_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


def service_of(request: Request) -> Service:
    """What all requests share."""
    service: Service = request.app.state.service
    return service


def tenant_of(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)] = None
) -> str:
    """Whose key was sent."""
    keys: ApiKeys = request.app.state.keys
    tenant = keys.tenant_of(request.headers.get("authorization"))
    if tenant is None:
        message = "no valid key was sent; send one as `Authorization: Bearer KEY`"
        headers = {"WWW-Authenticate": "Bearer"}
        raise ApiError(401, message, kind=REFUSED, code="invalid_api_key", headers=headers)
    return tenant


def caller_of(
    tenant: Annotated[str, Depends(tenant_of)],
    x_request_id: Annotated[
        str | None, Header(pattern=REQUEST_ID, description="An identity by which progress can be watched.")
    ] = None,
) -> Caller:
    """The tenant, and the identity it chose or a new one."""
    return Caller(tenant, x_request_id or uuid.uuid4().hex)


ServiceOf = Annotated[Service, Depends(service_of)]
TenantOf = Annotated[str, Depends(tenant_of)]
CallerOf = Annotated[Caller, Depends(caller_of)]
