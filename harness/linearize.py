"""Is there an order of these calls that explains every answer? A search per job, after Wing and Gong, and Lowe.

A call takes effect at one moment between its start and its answer. Where the answer was lost it may take effect at
any moment after its start, or never. The search looks for moments such that a job, as `LeaseJob` says it must behave,
gives the answers that were given. Where there are none it names the smallest prefix of the history that has none: the
first answer that cannot be true together with those before it.

Pure: calls in, verdict out. Calls on different jobs do not constrain each other here, so each job is searched alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from fencepost.harness.adapter import JobId, Outcome
from fencepost.harness.errors import FencepostError

DEFAULT_BUDGET = 2_000_000
"""The most configurations one job's search looks at: some seconds of work. Histories of a run need a few hundred."""

NEVER = 2**62
"""Behind every position."""

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Operation:
    """One call as one job sees it. `started` and `answered` are positions in one order of all events of the history.

    Every position is used once. `earliest_us` and `latest_us` bound the database time at which it can have been judged.
    """

    job: JobId
    name: str  # enqueue, claim, heartbeat, complete, fail, cancel, reap, read
    started: int
    answered: int | None  # None: the answer never came, so it may take effect at any later moment, or never
    outcome: Outcome = Outcome.ACCEPTED
    actor: str = ""
    token: int | None = None  # the one it acts under; of a claim, the one it was given
    earliest_us: int = 0
    latest_us: int | None = None  # None: without bound
    ttl_us: int | None = None  # claim and heartbeat
    lease_until_us: int | None = None  # claim and read: the lease's end, where it is told
    repeated: bool = False  # accepted as the repetition of an answer given before
    may_exist: bool = False  # enqueue with a key: the job may be there already
    phase: str | None = None  # read: the state the rows show, in the words of `LeaseJob`
    attempts: int | None = None  # read
    max_attempts: int | None = None  # enqueue and read
    entries: int | None = None  # read: ledger entries of the job

    @property
    def is_optional(self) -> bool:
        """Whether it may never have happened."""
        return self.answered is None or self.outcome is Outcome.UNKNOWN

    def __str__(self) -> str:
        who = f"{self.actor}'s " if self.actor else ""
        under = f" under token {self.token}" if self.token is not None and self.name != "read" else ""
        if self.name == "read":
            told = f"the rows show {self.phase}, token {self.token}"
            return told + (f", {self.entries} in the ledger" if self.entries is not None else "")
        return f"{who}{self.name}{under}: {'no answer' if self.answered is None else self.outcome.value}"


class Specification(Protocol[State]):
    """How one job behaves when calls come one after another."""

    def initial(self) -> State: ...

    def apply(self, state: State, operation: Operation) -> Iterable[State]:
        """States the job can be in once `operation` has happened with the answer it has; none where it cannot.

        An operation whose answer is unknown is applied as if it had taken effect: that it did not is the search's part.
        """


@dataclass(frozen=True, slots=True)
class Unexplained:
    """The smallest prefix of a job's history that no order explains: it ends with the answer of `operation`."""

    job: JobId
    operation: Operation
    answered: int
    """The position of that answer."""
    configurations: int
    """How many states of the search were looked at."""

    def __str__(self) -> str:
        return f"no order of the calls on job {self.job} explains this: {self.operation}"


class BudgetSpent(FencepostError):
    """The search was given up before it knew."""


def check(
    operations: Iterable[Operation],
    specification: Specification[State],
    *,
    budget: int = DEFAULT_BUDGET,
) -> Unexplained | None:
    """None where every job's history has an explanation; else the earliest answer that has none."""
    of_job: dict[JobId, list[Operation]] = {}
    for operation in operations:
        of_job.setdefault(operation.job, []).append(operation)
    found = [
        unexplained
        for history in of_job.values()
        if (unexplained := check_job(history, specification, budget=budget)) is not None
    ]
    return min(found, key=lambda unexplained: unexplained.answered, default=None)


def check_job(
    history: Sequence[Operation],
    specification: Specification[State],
    *,
    budget: int = DEFAULT_BUDGET,
) -> Unexplained | None:
    search = _Search(history, specification, budget)
    if search.explains():
        return None
    # A call still under way at the end of a prefix may yet be answered otherwise than it was, so a prefix can have an
    # explanation where the whole search did not get past it: the prefixes from there on are tried on their own.
    answers = sorted(op.answered for op in history if op.answered is not None and not op.is_optional)
    low, high = answers.index(search.furthest), len(answers) - 1
    while low < high:
        middle = (low + high) // 2
        prefix = _Search(_until(history, answers[middle]), specification, budget)
        explained = prefix.explains()
        search.looked_at += prefix.looked_at
        if explained:
            low = middle + 1
        else:
            high = middle
    # Items of one batch are answered together, also where they name the same job.
    last = [op for op in history if op.answered == answers[low]][-1]
    return Unexplained(last.job, last, answers[low], search.looked_at)


def _until(history: Sequence[Operation], position: int) -> list[Operation]:
    """The history up to this answer: what has not answered by then is unknown."""
    return [
        op if op.answered is not None and op.answered <= position else _unanswered(op)
        for op in history
        if op.started <= position
    ]


def _unanswered(op: Operation) -> Operation:
    """What a claim was given stays: whoever acts under it before the answer came must have it from somewhere."""
    return replace(op, answered=None, outcome=Outcome.UNKNOWN, latest_us=None, repeated=False)


class _Search(Generic[State]):
    """Depth first over the orders, never twice from the same set of calls in the same state."""

    def __init__(
        self, history: Sequence[Operation], specification: Specification[State], budget: int
    ) -> None:
        self._operations = sorted(history, key=lambda op: op.started)
        self._answered = [
            (op, NEVER if op.answered is None or op.is_optional else op.answered) for op in self._operations
        ]
        self._specification = specification
        self._budget = budget
        self.looked_at = 0
        self.furthest = -1
        """The last answer that was reached and never passed."""

    def explains(self) -> bool:
        operations = self._operations
        apply = self._specification.apply
        wanted = 0  # the calls that must have happened, as bits
        for index, op in enumerate(operations):
            if not op.is_optional:
                wanted |= 1 << index
        start = self._specification.initial()
        seen: set[tuple[int, State]] = {(0, start)}
        stack: list[tuple[int, State]] = [(0, start)]
        while stack:
            done, state = stack.pop()
            self.looked_at += 1
            if self.looked_at > self._budget:
                raise BudgetSpent(
                    f"the search for an explanation of job {operations[0].job} was given up after "
                    f"{self._budget} configurations: {len(operations)} calls"
                )
            if done & wanted == wanted:
                return True
            candidates, bound = self._may_come_next(done)
            self.furthest = max(self.furthest, bound)
            for bit, op in candidates:
                for successor in apply(state, op):
                    if successor == state and not bit & wanted:
                        continue  # that it never happened says the same, and leaves more open
                    configuration = (done | bit, successor)
                    if configuration not in seen:
                        seen.add(configuration)
                        stack.append(configuration)
        return False

    def _may_come_next(self, done: int) -> tuple[list[tuple[int, Operation]], int]:
        """The calls not yet placed that began before the first missing answer, latest first, and that answer."""
        bound = NEVER
        first = (~done & (done + 1)).bit_length() - 1
        bit = 1 << first
        candidates: list[tuple[int, Operation]] = []
        for op, answered in self._answered[first:]:
            if op.started > bound:
                break  # it began after a missing call had answered, and so did all that follow
            if not done & bit:
                candidates.append((bit, op))
                if answered < bound:
                    bound = answered
            bit <<= 1
        candidates.reverse()
        return candidates, bound
