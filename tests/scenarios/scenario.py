"""A scenario as a value: what is done step by step, and how it must end. And the steps that most are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.scenarios.outcome import Outcome
from tests.scenarios.worker import Fate, Moment
from tests.scenarios.world import World

_PATIENCE = 20
"""How often a publish that says "in progress" is asked again how far it is, on a slow machine."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: in words, and what it does.

    :ivar looks: the target is looked at afterwards.
    """

    text: str
    act: Callable[[World], None]
    looks: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scripted scenario.

    :ivar name: short and unique; the test's name.
    :ivar cases: the situations that it covers: numbers of known public reports, and words for others.
    :ivar outcome: the class of the first judged outcome.
    :ivar or_else: further classes that are as right, where it depends on what is noticed first.
    :ivar steps: what is done, in order.
    :ivar replicas: how many servers it needs.
    :ivar balanced: workers connect through the load balancer.
    :ivar own_cluster: it destroys what others need.
    :ivar independent: every replica has a table of its own.
    :ivar quick: it is the one for its class that runs with all other tests.
    """

    name: str
    cases: tuple[str, ...]
    outcome: Outcome
    steps: tuple[Step, ...]
    or_else: tuple[Outcome, ...] = ()
    replicas: int = 2
    balanced: bool = False
    own_cluster: bool = False
    independent: bool = False
    quick: bool = False

    def run(self, world: World) -> None:
        """Do every step."""
        for step in self.steps:
            world.step = step.text
            step.act(world)
            if step.looks:
                world.look()
        assert world.seen, "a scenario judges at least one outcome"
        assert world.seen[0] in (self.outcome, *self.or_else), f"expected {self.outcome}, got {world.seen[0]}"


# ---- What most scenarios are made of


def do(text: str, act: Callable[[World], object], *, looks: bool = False) -> Step:
    """Any step."""

    def run(world: World) -> None:
        act(world)

    return Step(text, run, looks)


def must(text: str, holds: Callable[[World], bool]) -> Step:
    """A step that only looks: it must be so."""

    def run(world: World) -> None:
        assert holds(world), f"not so: {text}; last: {world.results[-1] if world.results else 'nothing'}"

    return Step(text, run)


def ends(world: World, outcome: Outcome, code: str = "") -> None:
    """Judge how the last task ended."""
    assert (world.last.outcome, code or world.last.code) == (outcome, world.last.code), str(world.last)
    world.seen.append(outcome)


def live() -> Step:
    """A table that somebody else has made and filled, so that there is something that could get lost."""

    def run(world: World) -> None:
        world.make_live()
        world.notes["old"] = world.site.uuids()

    return Step("a first generation is live", run)


def staged(**arguments: object) -> Step:
    """Stage the next generation."""

    def run(world: World) -> None:
        result = world.stage(**arguments)  # type: ignore[arg-type]
        assert result.ok, str(result)

    return Step("the next generation is staged", run)


def stage(outcome: Outcome, code: str = "", **arguments: object) -> Step:
    """Stage the next generation, and judge."""

    def run(world: World) -> None:
        world.stage(**arguments)  # type: ignore[arg-type]
        ends(world, outcome, code)

    return Step(f"stage: {outcome} {code}".rstrip(), run)


def publish(outcome: Outcome, code: str = "", **waits: float) -> Step:
    """Publish, and judge."""

    def run(world: World) -> None:
        for _ in range(_PATIENCE):
            world.publish(**waits)  # type: ignore[arg-type]
            if world.last.outcome is not Outcome.IN_PROGRESS or code in ("", world.last.code):
                break
        ends(world, outcome, code)

    return Step(f"publish: {outcome} {code}".rstrip(), run)


def cleanup(outcome: Outcome = Outcome.CLEANED, code: str = "", **waits: float) -> Step:
    """Clean up, and judge."""

    def run(world: World) -> None:
        world.cleanup(**waits)
        ends(world, outcome, code)

    return Step(f"cleanup: {outcome} {code}".rstrip(), run)


def operator(command: str, outcome: Outcome = Outcome.RESOLVED, code: str = "", *, phase: str = "") -> Step:
    """An operator's command, and judge."""

    def run(world: World) -> None:
        world.operate(command)
        ends(world, outcome, code)
        if phase:
            assert world.last.receipt["phase"] == phase, world.last.receipt

    return Step(f"{command}: {outcome} {code or phase}".rstrip(), run)


def worker(task: str, moment: Moment, fate: Fate = Fate.DIE) -> Step:
    """A task in a worker that is killed at a moment."""

    def run(world: World) -> None:
        more = {"sql": world.new_generation()} if task == "stage" else {}
        running = world.work(world.job(task, moment=moment, fate=fate, **more))
        if fate is Fate.SLEEP:
            running.reached()
            return
        world.finished(running)
        ends(world, Outcome.KILLED)

    return Step(f"a worker of {task} gets {fate} when {moment}", run, looks=True)


def held_and_killed(task: str, node: int, match: str, *, executed: bool = False) -> Step:
    """A task in a worker that is killed while its statement is on the way; it arrives after the worker's death.

    :param executed: the statement has run by then, and its reply is on the way.
    """

    def run(world: World) -> None:
        fault = world.cluster.hold(node, match, executed=executed)
        more = {"sql": world.new_generation()} if task == "stage" else {}
        running = world.work(world.job(task, **more))
        fault.wait_for_hit(120)
        running.kill()
        world.finished(running)
        ends(world, Outcome.KILLED)
        fault.release()

    what = "reply" if executed else "statement"
    return Step(f"a worker of {task} is killed while its {what} is on the way", run, looks=True)


def heal() -> Step:
    """End every fault."""
    return do("every fault ends", lambda world: world.cluster.heal())


def swaps(times: int) -> Step:
    """How many swaps were sent since the scenario began."""
    return must(f"{times} swaps were sent in all", lambda world: world.site.swaps() == times)


def next_run() -> Step:
    """The way out: the next run publishes, and cleans up."""

    def run(world: World) -> None:
        for result in (world.stage(), world.publish(), world.cleanup()):
            assert result.ok, str(result)
        rows, _ = world.generations[f"g{world.generation}"]
        assert world.site.counts() == [rows] * len(world.cluster.nodes)

    return Step("the next run publishes", run)
