"""Optimizers as users write them: one that a server can use, and some that it cannot."""

import torch
from torch.optim import SGD, Optimizer


class SignDescent(Optimizer):
    """Steps of the same length: against the sign of the gradient, after weight decay."""

    def __init__(self, params, lr=0.1, weight_decay=0.0, *, shrink=1.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "shrink": shrink})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.move(parameter, self.direction(parameter.grad), group)

    def direction(self, gradient):
        return gradient.sign()

    def move(self, parameter, direction, group):
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(direction, alpha=-group["lr"] * group["shrink"])


class Renamed(SignDescent):
    """It passes all arguments on."""

    def __init__(self, params, **arguments):
        super().__init__(params, **arguments)


class Hooked(SignDescent):
    """Clamps the weights in a hook of torch's, after each step."""

    def __init__(self, params, **arguments):
        super().__init__(params, **arguments)
        self.register_step_post_hook(lambda *_: self.clamp())

    @torch.no_grad()
    def clamp(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.clamp_(-1, 1)


class Counting(SignDescent):
    """Keeps more than tensors of float32, and not for each parameter alone."""

    def step(self):
        first = self.param_groups[0]
        first["steps"], first["last"] = first.get("steps", 0) + 1, (first["lr"], None)
        self.state["all"]["sum"] = self.state["all"].get("sum", 0.0) + first["lr"]
        super().step()

    def move(self, parameter, direction, group):
        state, first = self.state[parameter], self.param_groups[0]
        state["sum"] = state.get("sum", torch.zeros(len(parameter), dtype=torch.float64))
        state["sum"] += direction / 3
        state["seen"] = [*state.get("seen", []), len(parameter)][-2:]
        pace = first["steps"] + len(first["last"]) + len(state["seen"]) + self.state["all"]["sum"]
        super().move(parameter, (state["sum"] / pace).float(), group)


class Keeping(SignDescent):
    """Keeps what no file can hold."""

    def move(self, parameter, direction, group):
        self.state[parameter]["kept"] = self
        super().move(parameter, direction, group)


class Normalised(SignDescent):
    """Couples the elements of a tensor by its norm."""

    def direction(self, gradient):
        return gradient / gradient.norm()


class ByRows(SignDescent):
    """Elementwise for vectors, but not for matrices."""

    def direction(self, gradient):
        return gradient if gradient.ndim < 2 else gradient - gradient.mean(dim=1, keepdim=True)


class Adaptive(SignDescent):
    """Couples elements only where there is weight decay, as LARS does."""

    def move(self, parameter, direction, group):
        if group["weight_decay"]:
            direction = direction * parameter.norm()
        super().move(parameter, direction, group)


class Noisy(SignDescent):
    """Draws random numbers."""

    def direction(self, gradient):
        return torch.randn_like(gradient)


class Writing(SignDescent):
    """Takes the gradient for its scratch."""

    def direction(self, gradient):
        return gradient.sign_()


class Replacing(SignDescent):
    """Gives each parameter a new tensor."""

    def move(self, parameter, direction, group):
        parameter.data = parameter - group["lr"] * direction


class Forgetful(SGD):
    """Takes the learning rate once, and keeps it elsewhere."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.lr = self.param_groups[0].pop("lr")

    def step(self):
        self.param_groups[0]["lr"] = self.lr
        super().step()
        self.param_groups[0].pop("lr")


class Unpaced(Optimizer):
    """Has no learning rate."""

    def __init__(self, params):
        super().__init__(params, {})
