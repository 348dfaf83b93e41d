"""The best fixed weights in hindsight, which regret is measured against.

The losses of a sequence of batches are added up sample by sample, so their sum is one convex
function: the cross-entropy of the training set, each sample weighted by how often it was drawn.
Everything here is in float64.

Shape legend: N = samples, D = features (the bias's 1 among them), C = classes.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, minimize
from scipy.special import log_softmax

Array = npt.NDArray[np.float64]

LEAST_PENALTY = 1e-9
"""If the optimum under this penalty lies in the ball, the constraint counts as not binding."""


@dataclass(frozen=True)
class Objective:
    """The weighted mean cross-entropy of a linear softmax classifier."""

    x: Array
    """The samples, (N, D)."""
    y: npt.NDArray[np.int64]
    """The labels, (N,)."""
    classes: int
    weights: Array
    """The weights of the samples, (N,), adding up to 1."""

    def __call__(self, w: Array) -> tuple[float, Array]:
        """Return the value and the gradient (C * D,) at w (C * D,)."""
        rows, logs = (
            np.arange(len(self.y)),
            log_softmax(self.x @ w.reshape(self.classes, -1).T, axis=1),
        )
        slope = np.exp(logs)
        slope[rows, self.y] -= 1
        slope *= self.weights[:, None]
        return float(-self.weights @ logs[rows, self.y]), (slope.T @ self.x).ravel()


@dataclass(frozen=True)
class Best:
    """The minimiser over a ball, as far as it was found."""

    w: Array
    """The weights, (C * D,), in the ball."""
    value: float
    gap: float
    """The true minimum lies in [value - gap, value]: the Frank-Wolfe gap, max of gradient . (w - v)
    over v in the ball."""
    penalty: float
    """The penalty at which the penalised optimum lies on the ball's surface; 0 where the
    unconstrained one lies inside."""


def best_in_ball(objective: Objective, radius: float) -> Best:
    """Minimise over |w| <= radius.

    Where the unconstrained optimum lies outside of the ball, the constrained one minimises f(w) +
    penalty / 2 |w|^2 for the one penalty at which |w| = radius (the Karush-Kuhn-Tucker conditions;
    f is convex). L-BFGS minimises, Brent's method finds the penalty, and the gap certifies the
    outcome, however it was found.
    """
    w = np.zeros(objective.classes * objective.x.shape[1])

    def excess(log_penalty: float) -> float:
        nonlocal w
        w = penalised(objective, float(np.exp(log_penalty)), w)
        return float(np.linalg.norm(w)) - radius

    penalty = 0.0
    if excess(np.log(LEAST_PENALTY)) > 0:
        # more than |gradient| = penalty |w|
        steepest = 2 * np.linalg.norm(objective.x, axis=1).max()
        penalty = float(
            np.exp(brentq(excess, np.log(LEAST_PENALTY), np.log(steepest / radius), xtol=1e-5))
        )
        w = penalised(objective, penalty, w)
    w = w * (radius / max(radius, float(np.linalg.norm(w))))
    value, gradient = objective(w)
    return Best(w, value, float(gradient @ w + radius * np.linalg.norm(gradient)), penalty)


def penalised(objective: Objective, penalty: float, start: Array) -> Array:
    """Return the minimiser of f(w) + penalty / 2 |w|^2, by L-BFGS."""

    def function(w: Array) -> tuple[float, Array]:
        value, gradient = objective(w)
        return value + penalty / 2 * float(w @ w), gradient + penalty * w

    outcome = minimize(
        function,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 10_000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-8, "maxcor": 30},
    )
    return np.asarray(outcome.x)
