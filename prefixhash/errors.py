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


class TraceFormatError(PrefixHashError, ValueError):
    """A trace file cannot be read: `file` and `line` (None: the whole file) say where."""

    def __init__(self, file: str, line: int | None, reason: str) -> None:
        self.file = file
        self.line = line
        self.reason = reason
        super().__init__(f"{file}: {reason}" if line is None else f"{file}:{line}: {reason}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.file, self.line, self.reason)


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


class PlanningError(PrefixHashError, ValueError):
    """Base of what the KV-cache planner refuses; `ValueError`, too."""


class NotEnoughMemoryError(PlanningError):
    """The KV cache of one request of the asked length does not fit.

    All sizes in bytes. `max_model_len` is the longest length that fits (0: none), `worker` the
    index of the worker that limits it, `reserved` what the null block takes of `available`.
    `per_worker` holds (needed, available, longest length) of every worker that was checked.
    """

    def __init__(
        self,
        problem: str,
        *,
        needed: int,
        available: int,
        max_model_len: int,
        worker: int = 0,
        reserved: int = 0,
        per_worker: tuple[tuple[int, int, int], ...] = (),
    ) -> None:
        self.problem = problem
        self.needed = needed
        self.available = available
        self.max_model_len = max_model_len
        self.worker = worker
        self.reserved = reserved
        self.per_worker = per_worker or ((needed, available, max_model_len),)
        fits = f"the longest length that fits is {max_model_len}"
        super().__init__(
            f"worker {worker}: {problem}: {needed} bytes needed, {available} available, {reserved} "
            f"of them for the null block; {fits if max_model_len else 'not even one token fits'}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        data = {key: value for key, value in vars(self).items() if key != "problem"}
        return _rebuild, (type(self), (self.problem,), data)


class IncompatibleLayersError(PlanningError):
    """Two layers that should share one spec or one group differ in `field`.

    `layers` are their names, `values` what the field is on each.
    """

    def __init__(
        self, layers: tuple[str, ...], field: str, values: tuple[object, ...], problem: str
    ) -> None:
        self.layers = layers
        self.field = field
        self.values = values
        self.problem = problem
        what = ", ".join(
            f"{layer}: {shorten(value, 60)}" for layer, value in zip(layers, values, strict=True)
        )
        super().__init__(f"{problem} ({field}: {what})")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.layers, self.field, self.values, self.problem)


class InconsistentWorkersError(IncompatibleLayersError):
    """Two workers give different specs for one layer."""


class IncompatiblePageSizesError(PlanningError):
    """Pages that must be equal are not, and cannot be made so.

    `page_sizes` maps a layer of each size to its page in bytes.
    """

    def __init__(self, page_sizes: dict[str, int], problem: str) -> None:
        self.page_sizes = page_sizes
        self.problem = problem
        super().__init__(f"{problem} (bytes per page: {shorten(page_sizes)})")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.page_sizes, self.problem)


class NoCommonBlockSizeError(PlanningError):
    """No kernel block size divides `block_size` and suits every kernel in `supported`."""

    def __init__(self, block_size: int, supported: tuple[object, ...]) -> None:
        self.block_size = block_size
        self.supported = supported
        super().__init__(
            f"no kernel block size divides block_size={block_size} and suits all of "
            f"{shorten(supported)}: choose another block_size or other kernels"
        )

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.block_size, self.supported)


class UnsupportedCombinationError(PlanningError):
    """Valid parts that cannot work together; `subject` names the part that must change."""

    def __init__(self, subject: str, problem: str) -> None:
        self.subject = subject
        self.problem = problem
        super().__init__(f"{subject}: {problem}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.subject, self.problem)


class ModelConfigError(PlanningError):
    """A model's config.json does not say, or says unclearly, what its layers keep.

    `model_type` is the decoder's (may be empty), `fields` names the fields to add or correct.
    """

    def __init__(self, model_type: str, problem: str, fields: tuple[str, ...] = ()) -> None:
        self.model_type = model_type
        self.problem = problem
        self.fields = fields
        super().__init__(
            f"config of model_type={model_type!r}: {problem}" if model_type else problem
        )

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.model_type, self.problem, self.fields)


class UnknownArchitectureError(ModelConfigError):
    """The architecture is not known, and its fields do not say enough without knowing it."""


def _rebuild(kind: type[Exception], args: tuple[object, ...], data: dict[str, object]) -> Exception:
    """Unpickles an error with keyword-only data."""
    return kind(*args, **data)


def shorten(value: object, limit: int = 120) -> str:
    """`repr(value)`, cut in the middle to `limit` characters, for use in a message."""
    text = repr(value)
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    return f"{text[:head]}...{text[head + 3 - limit :]}"
