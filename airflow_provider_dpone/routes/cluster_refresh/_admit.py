"""Admission of a stage task: wait for the target's slot, end what is over, and say what may be done with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, assert_never

from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.admission import FinishFirst, Request, Resume, Slot, admit_request
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.identity import TaskIdentity, target_key
from airflow_provider_dpone.publication.record import UNSENT_PHASES, AuthorityRecord, Owner, new_fence_token
from airflow_provider_dpone.publication.stop import Category, Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import Admission, TurnedAway
from airflow_provider_dpone.publication.witness import admission_warnings, live_table, slot_found
from airflow_provider_dpone.routes.cluster_refresh._cleanup import finish_drops, free_slot
from airflow_provider_dpone.routes.cluster_refresh._common import (
    Pause,
    Site,
    Waits,
    dependents,
    drops_due,
    observe_admitted,
    require_target,
)
from airflow_provider_dpone.routes.cluster_refresh._evidence import note
from airflow_provider_dpone.routes.cluster_refresh._publish import settle
from airflow_provider_dpone.routes.ports import Ports, StagePlan

R = TypeVar("R", bound=AuthorityRecord)


@dataclass(frozen=True, slots=True)
class StageRequest:
    """What a stage task asks for, apart from what the staging adapter knows (source and structure).

    :ivar order_key: text that orders runs of this publication, such as the data interval's end.
    :ivar retention: seconds for which the predecessor is kept after the commit, on the server's clock.
    :ivar refuse_dependents: refuse a target on which other objects depend.
    """

    identity: TaskIdentity
    owner: Owner
    order_key: str | None = None
    allow_older: bool = False
    retention: int = 0
    refuse_dependents: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a stage task may do, and the look that it rests on.

    :ivar found: the slot as it was found; :class:`Resume` where this very operation has it already.
    """

    request: StageRequest
    observation: Observation
    authority_id: str
    target_key: str
    operation_id: str
    publication_key: str
    found: Resume | Slot

    @property
    def slot(self) -> Slot:
        """The slot as it was found, whoever had it."""
        match self.found:
            case Slot():
                return self.found
            case Resume(stored):
                table = stored.record.table
                return Slot(stored, self.observation.generation(table), self.observation.rows(table))

    def record(
        self,
        make: Callable[..., R],
        site: Site,
        slot: Slot,
        seen: Observation,
        plan: StagePlan,
        nonce: str,
        **own: Any,
    ) -> R:
        """Return the first record of this operation, over what the slot holds.

        :param make: the kind of record.
        :param slot: the slot that it is written over.
        :param seen: the look that the record rests on.
        :param own: what the kinds do not have in common.
        """
        target, request, aliases = site.target, self.request, seen.inventory.aliases
        before = slot.stored.record if slot.stored else None
        return make(
            authority_id=self.authority_id,
            target_key=self.target_key,
            cluster=target.cluster,
            database=target.database,
            table=target.table,
            operation_id=self.operation_id,
            publication_key=self.publication_key,
            owner=request.owner,
            order_key=request.order_key,
            plan_digest=plan.digest,
            fence_token=new_fence_token(self.operation_id, nonce),
            dispatch_epoch=before.dispatch_epoch if before else 0,
            inventory_digest=seen.inventory.digest,
            replicas=aliases,
            servers=tuple(seen.replicas[alias].server for alias in aliases),
            predecessor=slot.live,
            live_rows=slot.live_rows,
            dependents=dependents(seen),
            retention=request.retention,
            prepared_at=seen.server_time,
            changed_at=seen.server_time,
            published_order_key=before.published_order_key if before else None,
            retained=transitions.inherited(before, now=seen.server_time),
            settled=before.remembered(self.operation_id) if before else (),
            **own,
        )

    def entry(self, site: Site, plan: StagePlan) -> Admission:
        """Return what the evidence says of the admission."""
        seen, slot, request = self.observation, self.slot, self.request
        return Admission(
            database=site.target.database,
            table=site.target.table,
            target_key=self.target_key,
            publication_key=self.publication_key,
            authority_id=self.authority_id,
            owner=request.owner,
            order_key=request.order_key,
            plan_digest=plan.digest,
            inventory_digest=seen.inventory.digest,
            replicas=seen.inventory.aliases,
            live=live_table(slot.live),
            live_rows=slot.live_rows,
            slot=slot_found(slot.stored),
            retention=request.retention,
            schema_difference=plan.schema_difference,
            dependents=dependents(seen),
            warnings=admission_warnings(slot, len(seen.dependents), order_key=request.order_key),
        )


def admit_stage(ports: Ports, site: Site, request: StageRequest, waits: Waits) -> Admitted:
    """Wait until the target's slot may be used, ending what is over; nothing of the source is read.

    :raises Stopped: the target can't be refreshed, or another operation holds it.
    """
    target = site.target
    busy = Pause(ports, waits.busy, waits)
    waiting = drops_tried = False
    while True:
        try:
            observation, authority_id = observe_admitted(ports, site, [target.table], waits)
        except Stopped as stopped:
            # A look that fails for a moment does not end a wait.
            if not (waiting and stopped.stop.passing) or busy.over():
                raise
            ports.log(f"Waiting. {stopped.stop.message}")
            continue
        key = target_key(authority_id, target.database, target.table)
        operation_id = request.identity.operation_id(key)
        publication_key = request.identity.publication_key(key)
        if request.refuse_dependents and observation.dependents:
            raise Stopped(
                Stop(
                    Code.DEPENDENTS_REFUSED,
                    f"{len(observation.dependents)} objects depend on {target}.",
                    facts={"dependents": list(dependents(observation))},
                )
            )
        admitted = admit_request(
            observation,
            target.table,
            Request(operation_id, publication_key, request.order_key, request.allow_older),
        )
        match admitted:
            case Stop() if admitted.category is Category.CONFLICT:
                waiting = True
                try:
                    if _moves_on(ports, site, observation, waits):
                        continue
                except Stopped as stopped:
                    if not stopped.stop.passing:
                        raise
                    admitted = stopped.stop
                if busy.over():
                    raise Stopped(_turned_away(ports, observation, admitted, operation_id, request.owner))
                ports.log(f"Waiting. {admitted.message}")
                continue
            case Stop():
                raise Stopped(admitted)
            case FinishFirst(stored):
                ports.log(f"{target}: an earlier publication is committed; its slot is freed first.")
                waiting = True
                try:
                    free_slot(ports, site, stored)
                except Stopped as stopped:
                    if not stopped.stop.passing or busy.over():
                        raise
                    ports.log(f"Waiting. {stopped.stop.message}")
                continue
            case Slot(stored) if stored is not None and not drops_tried and drops_due(stored, observation):
                finish_drops(ports, site, stored, observation.server_time, waits)
                drops_tried = True
                continue
            case Resume() | Slot():
                require_target(site, observation)
                return Admitted(
                    request, observation, authority_id, key, operation_id, publication_key, admitted
                )
            case _:
                assert_never(admitted)


def _turned_away(
    ports: Ports, observation: Observation, refused: Stop, operation_id: str, owner: Owner
) -> Stop:
    """Say that nothing was begun, and note with the operation that holds the target who was refused because of it."""
    held = observation.record
    if held is None or refused.category is not Category.CONFLICT:
        return refused
    entry = TurnedAway(operation_id, owner, refused.code.name, held.record.phase, held.version)
    note(ports, held.record.operation_id, entry)
    return replace(refused, message=f"{refused.message} Nothing was started: the source was not read.")


def _moves_on(ports: Ports, site: Site, observation: Observation, waits: Waits) -> bool:
    """Tell whether the operation that holds the target could be proven or given back. Its task may be gone."""
    stored = observation.record
    if stored is None or stored.record.phase in UNSENT_PHASES:
        return False
    if (stop := settle(ports, site, stored, observation.sequence, waits)) is not None:
        ports.log(f"The operation that holds the target is not proven: {stop.message}")
    return stop is None
