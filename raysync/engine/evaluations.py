"""The evaluations of a run, one at a time, at marks on its progress; then its models are saved.

An evaluator only measures, so its death or a missed deadline does not end the run: it restarts and
repeats the evaluation. After `TRIES` failures in a row the run continues without evaluations and
models, as a remark says. An error of the user's model or data ends the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

from raysync.config import START_DEADLINE_S, Experiment
from raysync.core.journal import ActorKind, Evaluation
from raysync.core.metrics import PrimaryMetric, refusal, value_of
from raysync.engine.backend import Backend, Call, Failure
from raysync.engine.checkpointing import ConsistentCut
from raysync.engine.kept_models import KeptModels, Weights
from raysync.engine.lines import Lines
from raysync.engine.messages import EvaluateCall, StateDictCall
from raysync.engine.parameter_server import ParameterServer
from raysync.errors import RunFailed

EVALUATOR = "evaluator"  # the evaluator's actor
TRIES = 3  # failures in a row before the evaluator is given up


@dataclass(slots=True, eq=False)
class Publication:
    """Published weights to evaluate, for the marks that progress has passed."""

    version: int
    progress: float
    marks: tuple[float, ...]
    # a call for each server, in the order of the stages; empty once evaluated
    weights: tuple[Call, ...]
    missing: int  # servers that have yet to publish
    is_last: bool  # the last of its run, on all test samples
    at: float | None = None  # when the last server had published, in seconds since the run began


class Evaluations:
    """The queue of publications for the evaluator, and the models to save.

    It holds references: on Ray, to weights in the object store (spilled to disk when it is full)
    or, below 100 KiB, in this process; at most one for each mark and for each model to save.
    """

    def __init__(
        self,
        backend: Backend,
        servers: Sequence[ParameterServer],
        experiment: Experiment,
        marks: Sequence[float],
        lines: Lines,
        evaluated: Callable[[list[Evaluation]], None],
        primary: PrimaryMetric,
    ) -> None:
        """
        Args:
            servers: publish the weights, in the order of the stages.
            marks: the progress at which to evaluate, rising.
            evaluated: called with the evaluations of some weights, once they are in the journal.
            primary: the metric of the best model.
        """
        self.models = KeptModels(experiment.keep, primary)
        self._primary = primary
        self._backend, self._servers = backend, servers
        self._processes = backend.processes
        self._set_marks(reversed(marks))
        self._deadline_s = experiment.evaluation.deadline_s
        self._required_metrics = experiment.named_metrics
        self._lines, self._on_evaluated = lines, evaluated
        self._waiting: deque[Publication] = deque()
        self._under_way: Call | None = None
        self._must_restart = False
        self._are_models_due = False
        self._failures = 0  # in a row
        self._awaited = 0  # vectors of a checkpoint that its servers have not given yet
        self.published_at = 0.0  # of the latest weights, in seconds since the run began

    def add(
        self, version: int, progress: float, marks: tuple[float, ...], *, is_last: bool = False
    ) -> None:
        """Publish the weights as they are after all updates so far, and evaluate them.

        Args:
            marks: passed by progress; without any, nothing is evaluated.
            is_last: the run ends with it; the evaluation at mark 1 always is the last.
        """
        if not marks:
            return
        is_last = is_last or 1 in marks
        calls = [server.newest() for server in self._servers]
        publication = Publication(
            version=version,
            progress=progress,
            marks=marks,
            weights=tuple(calls),
            missing=len(calls),
            is_last=is_last,
        )
        if self._failures < TRIES:
            self._waiting.append(publication)
        for server, call in zip(self._servers, calls, strict=True):
            server.expect(call, self._published, (publication, server, server.version))

    def _published(self, what: tuple[Publication, ParameterServer, int]) -> None:
        """Note a server's publication; evaluate once all servers have published."""
        publication, server, version = what
        server.done(version)
        publication.missing -= 1
        if publication.missing:
            return
        self.published_at = self._backend.now
        if publication.at is None:
            # Servers work in order, but Ray reports in any order: earlier publications are done.
            for waiting in self._waiting:
                if waiting.at is None:
                    waiting.at = self._backend.now
                if waiting is publication:
                    break
        self._begin()

    def pop_marks(self, progress: float) -> tuple[float, ...]:
        """Return the marks passed since the last call."""
        passed = []
        while self._marks and self._marks[-1] <= progress:
            passed.append(self._marks.pop())
        self._set_marks(self._marks)
        return tuple(passed)

    def _set_marks(self, marks: Iterable[float]) -> None:
        self._marks = list(marks)  # not passed yet, falling
        self.next_mark = self._marks[-1] if self._marks else float("inf")

    def save_models(self) -> None:
        """Save the models once everything is evaluated: the training has ended."""
        self._are_models_due = True
        self._begin()

    @property
    def is_pending(self) -> bool:
        """Whether an evaluation or the saving of a model is under way or outstanding."""
        return bool(self._waiting) or self._is_model_next

    @property
    def _is_model_next(self) -> bool:
        is_due = self._are_models_due and not self._waiting
        return is_due and self.models.next_weights is not None

    @property
    def _is_idle(self) -> bool:
        if self._waiting:
            return self._waiting[0].at is None
        return not self._is_model_next

    # ---- the call under way ----

    def _begin(self) -> None:
        """Begin the next evaluation, model or restart, unless a call is under way."""
        if self._under_way is not None or self._awaited or self._is_idle:
            return
        if self._must_restart:
            call = self._processes.restart(EVALUATOR)
            then, limit_s = self._restarted, START_DEADLINE_S
        elif self._is_model_next:
            weights = self.models.next_weights or ()
            call = self._backend.call(EVALUATOR, StateDictCall(), weights)
            then, limit_s = self._save, self._deadline_s
        else:
            publication = self._waiting[0]
            message = EvaluateCall(publication.is_last)
            call = self._backend.call(EVALUATOR, message, publication.weights)
            then, limit_s = self._evaluated, self._deadline_s
        self._under_way = call
        self._backend.watch(call, then, call)
        at = self._backend.now + limit_s
        self._processes.schedule_deadline(at, self._miss_deadline, (ref(call), limit_s))

    def _evaluated(self, call: Call) -> None:
        answer = self._finish(call)
        if answer is None:
            return
        self._check_metrics(answer)
        publication = self._waiting.popleft()
        self._failures = 0
        assert publication.at is not None, "evaluated before it was published"
        metrics = {name: float(value) for name, value in answer.items()}
        self.models.update(publication.weights, value_of(metrics, self._primary.name))
        evaluations = [
            Evaluation(
                mark=mark,
                progress=publication.progress,
                version=publication.version,
                at=publication.at,
                metrics=metrics,
            )
            for mark in publication.marks
        ]
        self._lines += evaluations
        self._on_evaluated(evaluations)
        publication.weights = ()
        self._begin()

    def _check_metrics(self, metrics: Mapping[str, float]) -> None:
        """Check the metrics of the user's task.

        Raises:
            RunFailed: these are no metrics, or one that the experiment names is missing.
        """
        why = refusal(metrics)
        if why:
            raise RunFailed(f"evaluator: {why}")
        for where, name in self._required_metrics.items():
            if value_of(metrics, name) is None:
                raise RunFailed(
                    f"{where}: {name!r} is not among the metrics of the task: {', '.join(metrics)}"
                )

    def _save(self, call: Call) -> None:
        """Store the file of a model; a model that cannot be saved does not undo the training."""
        if self._under_way is call and _is_raised(call.answer):
            self._under_way = None
            self._give_up_models(f"The evaluator cannot save the model ({call.answer.reason})")
            return
        data = self._finish(call)
        if data is not None:
            self._failures = 0
            self.models.save(data)
            self._begin()

    def _give_up_models(self, why: str, lost: ActorKind | None = None) -> None:
        self._lines.remark(f"{why}: the run leaves no {self.models.give_up()} model.", lost)

    def _restarted(self, call: Call) -> None:
        if self._finish(call) is not None:
            self._must_restart = False
            self._begin()

    def _finish(self, call: Call) -> Any:
        """End the call under way; return its answer, None if it failed or is no longer awaited.

        Raises:
            RunFailed: the user's model or data raised an error.
        """
        if self._under_way is not call:
            return None
        answer = call.answer
        if not isinstance(answer, Failure):
            self._under_way = None
            return answer or {}
        if _is_raised(answer):
            raise RunFailed(f"evaluator: {answer.reason}")
        self._fail(answer.reason)
        return None

    def _miss_deadline(self, call_and_limit: tuple[ref[Call], float]) -> None:
        """Give up the call under way: the process is frozen, or cannot start."""
        found, limit_s = call_and_limit
        call = found()
        if call is None or self._under_way is not call or self._backend.is_done(call):
            return
        self._processes.kill(EVALUATOR)
        self._fail(
            f"it was not ready after {limit_s:g} s"
            if self._must_restart
            else f"no answer for {limit_s:g} s"
        )

    def _fail(self, why: str) -> None:
        self._failures += 1
        self._under_way, self._must_restart = None, True
        if self._failures < TRIES:
            repeated = "the model is saved" if self._is_model_next else "its evaluation is repeated"
            self._lines.remark(
                f"The evaluator failed ({why}); it is restarted, and then {repeated}.",
                lost="evaluator",
            )
            self._begin()
            return
        given_up = f"The evaluator failed {TRIES} times in a row ({why}) and is given up"
        if self._is_model_next:
            self._give_up_models(given_up, "evaluator")
            return
        waiting = [mark for publication in self._waiting for mark in publication.marks]
        missing = [*waiting, *reversed(self._marks)]
        self._waiting.clear()
        self._set_marks(())
        names = ", ".join(f"{mark:g}" for mark in missing)
        no_model = ", and the run leaves no model" if self.models.are_wanted else ""
        self.models.give_up()
        self._lines.remark(
            f"{given_up}: the evaluations at progress {names} are missing{no_model}. The run"
            " continues.",
            lost="evaluator",
        )

    # ---- checkpoints ----

    def state(self, cut: ConsistentCut) -> dict[str, Any]:
        """Return the checkpoint state, and let the snapshot keep the queued weights."""

        def keep(name: str, weights: Weights) -> None:
            for server, call in zip(self._servers, weights, strict=True):
                cut.keep(name, server, call)

        for index, publication in enumerate(self._waiting):
            keep(f"evaluation {index}", publication.weights)
        return {
            "marks": self._marks,
            "published_at": self.published_at,
            "waiting": [
                [waiting.version, waiting.progress, waiting.marks, waiting.is_last, waiting.at]
                for waiting in self._waiting
            ],
            "models": self.models.state(keep),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the evaluations that were pending."""

        def saved(name: str) -> Weights:
            calls = tuple(server.saved(name) for server in self._servers)
            for server, call in zip(self._servers, calls, strict=True):
                self._awaited += 1
                server.expect(call, self._arrived, None)
            return calls

        self._set_marks(state["marks"])
        self.published_at = state["published_at"]
        for index, (version, progress, marks, is_last, at) in enumerate(state["waiting"]):
            at = self._backend.now if at is None else at
            weights = saved(f"evaluation {index}")
            self._waiting.append(
                Publication(
                    version=version,
                    progress=progress,
                    marks=tuple(marks),
                    weights=weights,
                    missing=0,
                    is_last=is_last,
                    at=at,
                )
            )
        self.models.load_state(state["models"], saved)
        self._begin()

    def _arrived(self, _: None) -> None:
        self._awaited -= 1
        self._begin()


def _is_raised(answer: Any) -> bool:
    """Return whether the user's model or data raised an error."""
    return isinstance(answer, Failure) and answer.kind == "raised"
