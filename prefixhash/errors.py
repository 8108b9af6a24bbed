"""The exception tree: every error that the library raises on purpose is a `PrefixHashError`.

Leaves that mean bad input are also `ValueError`s. A message names the argument, the value and the
way out; what a caller may want to act on (a block id, the bytes that were lacking) is an attribute.
"""

from __future__ import annotations


class PrefixHashError(Exception):
    """Base of all errors of this package."""


class InvalidArgumentError(PrefixHashError, ValueError):
    """An argument has a value that cannot be used.

    `argument` is the name of the argument (`"mm_features[2].mm_position"`), `value` what was given.
    """

    def __init__(self, argument: str, value: object, problem: str) -> None:
        self.argument = argument
        self.value = value
        self.problem = problem
        super().__init__(f"{argument}={shorten(value)}: {problem}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.argument, self.value, self.problem)


class InvalidRequestError(InvalidArgumentError):
    """A field of a request (tokens, LoRA, media, embeddings, salt) cannot be hashed."""


class InvalidProfileError(InvalidArgumentError):
    """A hash profile that does not exist, or that needs a root that was not given."""


class InvalidBlockError(InvalidArgumentError):
    """A block id that the call must not be given: foreign, null, or freed already."""


class OutOfBlocksError(PrefixHashError, RuntimeError):
    """The pool has fewer free blocks than were asked for; nothing was changed."""

    def __init__(self, needed: int, free: int) -> None:
        self.needed = needed
        self.free = free
        super().__init__(
            f"{needed} blocks needed, {free} free: free or preempt requests, or enlarge the pool"
        )

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.needed, self.free)


class StaleHitError(PrefixHashError, RuntimeError):
    """A block of a cache hit was evicted or reused since the lookup; nothing was changed.

    Look the request up again.
    """


class InvariantError(PrefixHashError, RuntimeError):
    """`check()` found state that contradicts itself: a bug of this package or of its embedder."""


def shorten(value: object, limit: int = 120) -> str:
    """`repr(value)`, cut in the middle to `limit` characters, for use in a message."""
    text = repr(value)
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    return f"{text[:head]}...{text[head + 3 - limit :]}"
