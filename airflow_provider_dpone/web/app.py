"""The page's routes. Each needs a logged-in user who may read the DAG's data, and each only reads."""

from __future__ import annotations

import asyncio
import contextvars
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, ParamSpec, TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from airflow_provider_dpone import composition
from airflow_provider_dpone.bad_input import bad_input
from airflow_provider_dpone.evidence.reader import EvidenceReader, Trail
from airflow_provider_dpone.publication.stop import Stopped
from airflow_provider_dpone.routes.ports import Target
from airflow_provider_dpone.web import access
from airflow_provider_dpone.web.access import User
from airflow_provider_dpone.web.live import LiveReader
from airflow_provider_dpone.web.model import LiveFacts, Receipt
from airflow_provider_dpone.web.pages import Links, Pages
from airflow_provider_dpone.web.publications import Filter, Publication, Publications
from airflow_provider_dpone.web.recorded import connection_of
from airflow_provider_dpone.web.view import needs_live, receipt

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

_AT_ONCE: Final = 8
"""Pages that read evidence at the same time. They have threads of their own: a store that is slow must not take those
on which the rest of the api-server depends."""

_WORDS: Final[Mapping[int, str]] = {
    401: "You are not logged in. Log in to Airflow and load this page again.",
    403: "You may not read this DAG's data.",
    404: "There is no such page, or no such publication of this DAG.",
    405: "This page only shows things.",
    422: "The address has a parameter that this page doesn't take.",
}


def create_app(publications: Publications | None = None, live: LiveReader | None = None) -> FastAPI:
    """Return the application that the api-server mounts."""
    app = FastAPI(title="dpone", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dpone-page")
    known = publications or Publications(_readers)
    looks = live or LiveReader(access.explain_now)
    pages = Pages()

    async def in_thread(call: Callable[P, ResultT], *args: P.args, **kwargs: P.kwargs) -> ResultT:
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(
            threads, lambda: context.run(call, *args, **kwargs)
        )

    def page(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        nonce = secrets.token_urlsafe(16)
        links = Links.of(request.scope)
        body = pages.render(template, nonce=nonce, links=links, **values)
        return HTMLResponse(body, status, headers=_headers(nonce))

    def message(request: Request, status: int, text: str, *more: str) -> HTMLResponse:
        title = HTTPStatus(status).phrase
        return page(request, "message.html", status, title=title, text=text, more=more)

    def allow(user: Any, dag_id: str) -> None:
        if not access.may_read(user, dag_id):
            raise HTTPException(403)

    async def shown(one: Publication, trail: Trail) -> Receipt:
        facts = await _live(looks, one, trail)
        return receipt(
            trail,
            facts,
            cluster=one.cluster,
            later=one.later,
            now=datetime.now(UTC),
            owner=one.owner,
            dag_id=one.dag_id,
        )

    @app.get("/")
    async def overview(
        request: Request, user: User, cluster: str = "", target: str = "", status: str = "", before: str = ""
    ) -> HTMLResponse:
        wanted = Filter(cluster, target.strip(), status, before)
        found = await in_thread(known.overview, wanted, access.reader_of(user))
        return page(request, "list.html", found=found, wanted=wanted)

    @app.get("/dags/{dag_id}/operations/{operation_id}/{cluster:path}")
    async def operation(
        request: Request, user: User, dag_id: str, operation_id: str, cluster: str, still: bool = False
    ) -> HTMLResponse:
        await in_thread(allow, user, dag_id)
        found = await in_thread(known.operation, cluster, operation_id)
        # Whoever may read one DAG learns nothing about another one's operations, not even that they exist.
        if found is None or found[0].dag_id != dag_id:
            raise HTTPException(404)
        return page(request, "receipt.html", receipt=await shown(*found), still=still, others=(), own=())

    @app.get("/dags/{dag_id}/runs/{run_id:path}/tasks/{task_id}/{map_index}")
    async def task(
        request: Request,
        user: User,
        dag_id: str,
        run_id: str,
        task_id: str,
        map_index: str,
        still: bool = False,
    ) -> HTMLResponse:
        await in_thread(allow, user, dag_id)
        # Airflow leaves its placeholder as it is where a task is not mapped.
        mapped = map_index.isdecimal() and map_index.isascii() and len(map_index) < 10
        index = int(map_index) if mapped else -1
        found = await in_thread(known.of_task, dag_id, run_id, task_id, index)
        own = found.own[0] if found.own else None
        trail = await in_thread(known.operation, own.cluster, own.operation_id) if own else None
        if own is None or trail is None:
            return page(request, "task.html", found=found, task_id=task_id)
        return page(
            request,
            "receipt.html",
            receipt=await shown(*trail),
            still=still,
            own=found.own[1:],
            others=found.others,
        )

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> HTMLResponse:
        text = _WORDS.get(error.status_code, HTTPStatus(error.status_code).phrase)
        return message(request, error.status_code, text)

    @app.exception_handler(RequestValidationError)
    async def wrong(request: Request, error: RequestValidationError) -> HTMLResponse:
        return message(request, 422, _WORDS[422])

    @app.exception_handler(Stopped)
    async def stopped(request: Request, error: Stopped) -> HTMLResponse:
        return message(request, 503, error.stop.message, error.stop.next_action, error.stop.code.value)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> HTMLResponse:
        # Its text may hold anything.
        return message(
            request, 500, f"The page failed with {type(error).__name__}. The api-server's log has more."
        )

    return app


def _readers() -> Mapping[str, EvidenceReader]:
    with bad_input():
        return composition.evidence_readers()


async def _live(looks: LiveReader, one: Publication, trail: Trail) -> LiveFacts:
    if not needs_live(one.state, later=one.later):
        return LiveFacts(None, why_not="It is not read again: nothing of this operation is on its way.")
    conn_id = connection_of(trail.entries)
    if conn_id is None:
        return LiveFacts(
            None, why_not="Not live: this evidence was written by a release that did not note its connection."
        )
    return await looks.read(conn_id, Target(one.cluster, one.database, one.table))


def _headers(nonce: str) -> dict[str, str]:
    policy = (
        "default-src 'none'",
        f"style-src 'nonce-{nonce}'",
        f"script-src 'nonce-{nonce}'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'self'",
    )
    return {
        "Content-Security-Policy": "; ".join(policy),
        "X-Frame-Options": "SAMEORIGIN",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
