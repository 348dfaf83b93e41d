"""The optimizer of a server: a class of torch.optim, ours, or the user's, that works elementwise.

Servers step on slices of a flat vector, so no class may use shapes or norms of whole tensors,
except Muon.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from raysync.config import Update
from raysync.config.update import MUON
from raysync.errors import ConfigError, unknown_name
from raysync.paradigms.class_loading import load_reference
from raysync.training.optim.muon import MuonWithAdamW
from raysync.training.optim.outer_optimizers import OUTER

# classes of torch.optim that are not elementwise on dense vectors -> the reason
COUPLED = {
    "Adafactor": "it keeps the rows and columns of matrices, and divides by norms",
    "LBFGS": "it needs inner products of whole vectors, and several losses in one step",
    "SparseAdam": "it takes sparse gradients only",
}

# names of optimizers that are not torch's -> the classes
OURS: dict[str, type[Optimizer]] = OUTER | {MUON: MuonWithAdamW}

# Arguments with settings in `update`. (A user's class with more than two betas takes these as a
# parameter.)
SETTINGS = ("lr", "weight_decay", "momentum", "nesterov", "betas")

CHANGING = ("lr", "weight_decay", "momentum")  # may change from one update to the next

# arguments that choose another implementation than the fused one
UNFUSED = {"fused", "foreach", "differentiable", "capturable"}

# classes whose steps are not tried: torch's first step imports its compiler, which is slow
UNTRIED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)

# the elements of a trial, as one matrix, and as two vectors
ELEMENTS, SHAPE = 24, (4, 6)
WHOLE, PARTS = (slice(0, ELEMENTS),), (slice(0, 10), slice(10, ELEMENTS))

EVEN, RISING = (0.1, 0.1, 0.1), (0.1, 0.2, 0.2)  # learning rates of a trial's steps

Groups = Sequence[dict[str, Any]]  # as torch.optim takes them

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def class_of(name: str, block: str = "update") -> type[Optimizer]:
    """Return the class of an optimizer; `block` names the settings in errors.

    Args:
        name: a class of torch.optim in any case, one of `OURS`, or `package.module:Class`.

    Raises:
        ConfigError: there is no such optimizer, or torch's does not work elementwise.
    """
    where = f"{block}.optimizer {name}"
    if ":" in name:
        found = load_reference(name, where)
        if not (isinstance(found, type) and issubclass(found, Optimizer)):
            raise ConfigError(f"{where}: it is no class that extends torch.optim.Optimizer.")
        return found
    torchs = {kind.__name__: kind for kind in _torch_classes()}
    known = {name.lower(): kind for name, kind in torchs.items()} | OURS
    found = known.get(name.lower())
    elementwise = [*sorted(torchs.keys() - COUPLED - {"Muon"}), *OURS]
    if found is MuonWithAdamW and "Muon" not in torchs:
        raise ConfigError(f"{where}: it needs torch 2.9 or later; this is {torch.__version__}.")
    if found is None:
        allowed = [*elementwise, "or yours: package.module:Class"]
        raise unknown_name("optimizer", name, known, f"{block}.optimizer", allowed)
    if reason := COUPLED.get(found.__name__):
        raise ConfigError(
            f"{where}: it is not elementwise, as an optimizer of a flat vector must be: {reason}."
            f"\nAllowed: {', '.join(elementwise)}, or yours: package.module:Class."
        )
    return found


def _torch_classes() -> list[type[Optimizer]]:
    return [
        each
        for each in vars(torch.optim).values()
        if isinstance(each, type) and issubclass(each, Optimizer) and each is not Optimizer
    ]


def arguments_of(kind: type[Optimizer]) -> list[str]:
    """Name the arguments of an optimizer, except the parameters to step on."""
    names: dict[str, None] = {}
    for cls in kind.__mro__:  # a constructor may pass on `**` arguments to its base class
        if "__init__" not in vars(cls):
            continue
        _, *parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()  # _: self
        names |= dict.fromkeys(each.name for each in parameters if each.kind not in _VARIADIC)
        if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
            break
    return [name for name in names if name not in ("params", "defaults")]


def is_torchs_own(update: Update) -> bool:
    return class_of(update.optimizer.name) in _torch_classes()


def is_fused(update: Update) -> bool:
    """Whether torch has a kernel that makes the optimizer's step in one pass."""
    has_kernel = is_torchs_own(update) and "fused" in arguments_of(class_of(update.optimizer.name))
    return has_kernel and UNFUSED.isdisjoint(update.optimizer.parameters)


def optimizer_of(update: Update, groups: Groups) -> Optimizer:
    kind = class_of(update.optimizer.name)
    accepted = arguments_of(kind)
    arguments = {
        name: value
        for name in SETTINGS
        if name in accepted and (value := getattr(update, name)) is not None
    }
    if is_fused(update):
        arguments["fused"] = True
    make: Any = kind
    optimizer: Optimizer = make(groups, **arguments, **update.optimizer.parameters)
    return optimizer


def check_optimizer(update: Update, block: str = "update") -> None:
    """Refuse an optimizer that is not elementwise, and settings that it does not have."""
    kind, parameters = class_of(update.optimizer.name, block), update.optimizer.parameters
    accepted, where = arguments_of(kind), f"{block}.optimizer {update.optimizer.name}"
    allowed = sorted({*accepted} - ({*SETTINGS} - {"betas"}))
    for name in parameters:
        if name in SETTINGS and (name != "betas" or update.betas is not None):
            raise ConfigError(f"{where}: give {name} as {block}.{name}.")
        if name not in allowed:
            raise unknown_name("argument", name, allowed, where)
    if "lr" not in accepted:
        raise ConfigError(f"{where}: it has no argument lr, which {block}.lr sets.")
    for path, name in _arguments_in_use(update):
        if name not in accepted:
            raise ConfigError(f"{block}.{path}: {kind.__name__} has no argument {name}.")
    if parameters or kind not in UNTRIED:
        _try_steps(update, accepted, block)


def _arguments_in_use(update: Update) -> Iterator[tuple[str, str]]:
    """Yield the path of every setting that needs an argument beside lr, and the argument."""
    for phase in ("", *update.phases):
        settings = update.in_phase(phase)
        changed = update.phases[phase].model_fields_set if phase else {*SETTINGS}
        for name in SETTINGS:
            if name != "lr" and name in changed and getattr(settings, name):
                yield (f"phases.{phase}.{name}" if phase else name), name
    if update.no_decay is not None:
        yield "no_decay", "weight_decay"
    for index, group in enumerate(update.groups):
        if group.weight_decay:
            yield f"groups[{index}].weight_decay", "weight_decay"


def _try_steps(update: Update, accepted: Collection[str], block: str) -> None:
    """Refuse an optimizer whose steps on a matrix and on its elements in two vectors differ."""
    kind, strictest = update.optimizer.name, _strictest(update)
    where = f"{block}.optimizer {kind}"
    with torch.random.fork_rng(devices=[]):
        try:
            whole = _trial_weights(strictest, WHOLE, SHAPE, EVEN, where)
            # Muon's matrices are never cut
            parts = (
                whole if update.is_muon else _trial_weights(strictest, PARTS, (-1,), EVEN, where)
            )
            rising = _trial_weights(strictest, WHOLE, SHAPE, RISING, where)
            fresh = optimizer_of(strictest, [{"params": [nn.Parameter(torch.ones(SHAPE))]}])
        except ConfigError:
            raise
        except Exception as error:  # anything that the optimizer raises
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"{where}: {type(error).__name__}: {reason}") from error
    if not torch.allclose(whole, parts, rtol=1e-4, atol=1e-6, equal_nan=True):
        raise ConfigError(
            f"{where}: it is not elementwise, as an optimizer of a flat vector must be: steps on a"
            " matrix differ from those on its elements in two vectors."
        )
    for name in CHANGING:
        if name in accepted and name not in fresh.param_groups[0]:
            raise ConfigError(
                f"{where}: it does not keep {name} in its param_groups, where a run changes it."
            )
    if torch.equal(whole, rising) and (path := _lr_changing_setting(update)):
        raise ConfigError(
            f"{block}.{path}: {kind} reads lr at its first step only, so no setting may change it."
        )


def _strictest(update: Update) -> Update:
    """Return the update with its largest weight decay and momentum of any phase or group."""
    # some optimizers are elementwise only without weight decay or momentum
    phases = [update.in_phase(name) for name in ("", *update.phases)]
    decays = [phase.weight_decay for phase in phases]
    decays += [group.weight_decay or 0.0 for group in update.groups]
    largest = {"weight_decay": max(decays), "momentum": max(phase.momentum for phase in phases)}
    return update.model_copy(update=largest)


def _lr_changing_setting(update: Update) -> str:
    """Return the path of a setting that may change lr in a run, or ""."""
    if update.schedule.name != "constant" or update.schedule.warmup:
        return f"schedule: {update.schedule.name}"
    for name in ("", *update.phases):
        path, settings = f"phases.{name}." if name else "", update.in_phase(name)
        if settings.lr != update.lr:
            return f"{path}lr: {settings.lr:g}"
        if settings.lr_scaling != "none":
            return f"{path}lr_scaling: {settings.lr_scaling}"
    return ""


def _trial_weights(
    update: Update, pieces: Sequence[slice], shape: Sequence[int], lrs: Sequence[float], where: str
) -> Tensor:
    """Return the elements after a step with each lr, by an optimizer for each piece."""
    generator = torch.Generator().manual_seed(0)
    weights: Tensor = torch.randn(ELEMENTS, generator=generator)
    gradients, before = _trial_gradients(weights, len(lrs), generator), weights.clone()
    for piece in pieces:
        parameter = nn.Parameter(weights[piece].view(*shape))
        optimizer = optimizer_of(update, [{"params": [parameter]}])
        for lr, gradient in zip(lrs, gradients, strict=True):
            copy = gradient.clone()
            parameter.grad = copy[piece].view(*shape)
            optimizer.param_groups[0]["lr"] = lr
            optimizer.step()
            if not torch.equal(copy, gradient):
                raise ConfigError(f"{where}: it changes the gradient, which it must only read.")
    if torch.equal(weights, before):
        raise ConfigError(f"{where}: its steps do not change the parameters in place.")
    return weights


def _trial_gradients(weights: Tensor, steps: int, generator: torch.Generator) -> Tensor:
    """Return gradients (steps, ELEMENTS) that reveal any coupling of elements."""
    gradients = torch.randn(steps, ELEMENTS, generator=generator)
    gradients[:, PARTS[0]] *= 1000  # changes norms
    # nearly orthogonal to the weights, like gradients of scale-invariant layers: AdamP and SGDP
    # then project
    along = weights / torch.linalg.vector_norm(weights)
    cosine = 0.005 * torch.linalg.vector_norm(gradients[0])
    gradients[0] += (cosine - gradients[0] @ along) * along
    return gradients
