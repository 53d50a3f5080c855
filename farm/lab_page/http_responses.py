"""JSON documents and errors as responses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from farm import views
from farm.errors import DeviceError, FarmError, LinkError, UsageError

BAD_REQUEST, FORBIDDEN, NOT_FOUND, CONFLICT, UNAVAILABLE = 400, 403, 404, 409, 503


class NotFound(UsageError):
    """The page or the object of a request does not exist."""


class Forbidden(UsageError):
    """Whoever asks may not have it."""


def json_response(kind: str, body: Mapping[str, Any], status: int = 200) -> web.Response:
    """Return a document with its schema's name."""
    return web.json_response(text=json.dumps(views.json_document(kind, body)), status=status)


def error_response(exc: FarmError, status: int | None = None) -> web.Response:
    """Return an error as a document: what, why and fix."""
    failure = dataclasses.asdict(exc.as_failure())
    if isinstance(exc, (NotFound, Forbidden)):
        failure["kind"] = "UsageError"
    return json_response("error", {"error": failure}, status or http_status(exc))


def http_status(exc: FarmError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(exc, NotFound):
        return NOT_FOUND
    if isinstance(exc, Forbidden):
        return FORBIDDEN
    if isinstance(exc, UsageError):
        return BAD_REQUEST
    if isinstance(exc, LinkError):
        return UNAVAILABLE
    return CONFLICT if isinstance(exc, DeviceError) else 500
