"""Many workers, many jobs, faults drawn from one seed: nothing is lost, and every job is done once.

FENCEPOST_SEEDS=1,2,3 runs it with other seeds; the seed is part of the scenario's name, so a failure names it.
"""

from __future__ import annotations

import os
from collections import deque
from random import Random

from fencepost.harness.adapter import LIVE_STATES, Capability, Claim
from fencepost.harness.postgres.provider import ServerFault
from fencepost.harness.race import Participant, Race
from fencepost.harness.scenario import scenario
from fencepost.harness.wire import lose_reply, lose_request
from fencepost.harness.witness import Witness, answer_lost, reclaimed, struck

SEEDS = tuple(os.environ.get("FENCEPOST_SEEDS", "1").split(","))
WORKERS = tuple(f"W{number}" for number in range(1, 9))
JOBS = 200
TURNS_AT_MOST = 20 * JOBS
ATTEMPTS_ENOUGH = 1000
TTL_S = 3600.0
"""Longer than the run takes in real time: leases expire by the clock alone, and every run is the same."""

COMMIT = "^COMMIT"
FAULT_IN_HUNDRED_TURNS = {
    "lose_reply": 4,
    "lose_request": 4,
    "cut": 4,
    "terminate": 3,
    "expire": 2,
    "crash": 1,
}

some_answer_lost = Witness(
    "the answer to some worker's complete was lost",
    lambda steps, executions: any(
        answer_lost(worker, "complete").seen(steps, executions) for worker in WORKERS
    ),
)


@scenario(
    requires={Capability.FENCING, Capability.CLOCK, Capability.RETRY, Capability.LEASE_LENGTH},
    witnesses=[struck("cut"), struck("terminate_backend"), struck("crash"), some_answer_lost, reclaimed],
    each={"seed": SEEDS},
    path="gate",
    server_faults={ServerFault.CRASH, ServerFault.TERMINATE_BACKEND},
)
def two_hundred_jobs(race: Race, seed: str) -> None:
    """Eight workers do two hundred jobs while faults drawn from the seed strike: every one succeeds, once."""
    swarm = Swarm(race, Random(f"swarm {seed}"))
    jobs = [race.enqueue(max_attempts=ATTEMPTS_ENOUGH) for _ in range(JOBS)]
    for _ in range(TURNS_AT_MOST):
        if not any(race.look(job).state in LIVE_STATES for job in jobs):
            break
        swarm.turn()

    for job in jobs:
        race.expect(job, state="succeeded", ledger=1)


class Swarm:
    """Draws who moves next, and what befalls it. All randomness is the seed's."""

    def __init__(self, race: Race, random: Random) -> None:
        self._race = race
        self._random = random
        self._workers = race.workers(*WORKERS)
        self._leases: dict[str, deque[Claim]] = {name: deque() for name in WORKERS}
        self._connected = set(WORKERS)

    def turn(self) -> None:
        worker = self._random.choice(self._workers)
        leases = self._leases[worker.name]
        fault = self._draw_fault()
        if not leases or (len(leases) < 3 and self._random.random() < 0.3):
            self._claim(worker, fault)
        else:
            self._complete(worker, leases.popleft(), fault)
        self._connected.add(worker.name)  # every turn ends with an operation that was answered

    def _draw_fault(self) -> str | None:
        drawn = self._random.randrange(100)
        for fault, share in FAULT_IN_HUNDRED_TURNS.items():
            if drawn < share:
                return fault
            drawn -= share
        return None

    def _claim(self, worker: Participant, fault: str | None) -> None:
        if fault in ("lose_reply", "lose_request"):
            rule = lose_reply(COMMIT) if fault == "lose_reply" else lose_request(COMMIT)
            worker.start("claim", ttl_s=TTL_S, faults=[rule]).result().unknown()
        else:
            self._strike(worker, fault)
        found = worker.try_claim(ttl_s=TTL_S).accepted().reply.claims
        self._leases[worker.name].extend(found)
        if not found:
            self._race.clock.advance(TTL_S + 1)
            self._race.recover()

    def _complete(self, worker: Participant, lease: Claim, fault: str | None) -> None:
        """A worker that gets no answer asks again; what it is told then, the invariants judge."""
        if fault in ("lose_reply", "lose_request"):
            rule = lose_reply(COMMIT) if fault == "lose_reply" else lose_request(COMMIT)
            if self._is_current(lease):
                worker.start("complete", lease, faults=[rule]).result().unknown()
        else:
            self._strike(worker, fault)
        worker.complete(lease)

    def _is_current(self, lease: Claim) -> bool:
        """Whether a complete gets as far as its COMMIT, where the fault waits for it."""
        view = self._race.look(lease.job)
        return (
            view.state == "leased"
            and view.token == lease.token
            and (view.lease_until_us or 0) > self._race.now_us
        )

    def _strike(self, worker: Participant, fault: str | None) -> None:
        match fault:
            case "cut":
                worker.path.cut()
            case "terminate" if worker.name in self._connected:
                self._race.server.terminate_backend(worker.name)
            case "crash":
                self._race.server.crash()
                self._connected.clear()
            case "expire":
                self._race.clock.advance(TTL_S + 1)
