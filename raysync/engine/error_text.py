"""The text of errors for users, on every backend."""

from __future__ import annotations

from raysync.users_code import users_place

OUT_OF_MEMORY = (
    "Reduce its memory: set a smaller batch_size (evaluation.batch_size, if it is the evaluator),"
    " micro_batch, or precision: bf16; or give it more memory: on Ray a larger share of a GPU"
    " (gpus), or another GPU."
)


def reason(error: BaseException) -> str:
    """Format an error with its notes and the user's line, in a few lines."""
    words = " ".join([str(error), *getattr(error, "__notes__", [])])
    text, place = f"{type(error).__name__}: {words}".strip(), users_place(error)
    if place not in text:
        text += f" ({place})"
    return f"{text} {OUT_OF_MEMORY}" if ran_out_of_memory(error) else text


def ran_out_of_memory(error: BaseException) -> bool:
    """Recognise torch's error by name: the controller has no torch."""
    # Ray's error of the same name concerns a node's memory.
    names = {(kind.__module__, kind.__name__) for kind in type(error).__mro__}
    return ("torch", "OutOfMemoryError") in names
