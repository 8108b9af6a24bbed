"""`Dialect`: what one way to hash has to answer.

`HashProfile` asks a dialect for names, algorithms and the root, `BlockHasher` for all that depends
on a request; neither knows which dialects there are. A new one is a class here beside and a row in
`DIALECTS`. Digests are bytes everywhere: a dialect whose hashes are integers writes them out,
big-endian, and reads them back in `int64`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from prefixhash._arguments import choice, integer
from prefixhash.errors import InvalidProfileError, InvalidRequestError
from prefixhash.hashing._chain import HashChain
from prefixhash.hashing.algorithms import ALGORITHMS, Algorithm

Extras = list[tuple[Any, ...] | None]


class Chain(Protocol):
    """From a parent, tokens and the extras of each block to digests; see `_chain_py.HashChain`."""

    def __call__(
        self,
        parent: bytes,
        token_ids: Sequence[int],
        block_size: int,
        extras: Sequence[tuple[Any, ...] | None] | None = None,
        start: int = 0,
        stop: int | None = None,
    ) -> list[bytes]: ...

    def hash_tokens(self, parent: bytes, token_ids: Any, block_size: int) -> list[bytes]: ...


@dataclass(frozen=True)
class Dialect(ABC):
    """One way to hash, of one `release` where it has several: a value, picklable.

    Of the class:
    `engine`: what the profile's name begins with. `releases`: those whose hashes are known, in
    order; none for a dialect that has no versions. `algorithms`, by name, and the
    `default_algorithm`. `drops`: attributes of a request that the hashes leave out, so that a
    request that has one is refused.
    """

    release: str = ""

    engine: ClassVar[str]
    releases: ClassVar[tuple[str, ...]] = ()
    algorithms: ClassVar[Mapping[str, Algorithm]] = ALGORITHMS
    default_algorithm: ClassVar[str]
    drops: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        choice("version", self.release, self.releases or ("",), error=InvalidProfileError)

    # --- names ------------------------------------------------------------------------------------

    @classmethod
    def of(cls, version: Any) -> Dialect:
        """The dialect that a version speaks; `InvalidProfileError` lists the known ones."""
        return cls(version)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of its profiles."""
        return tuple(f"{cls.engine}:{release}" for release in cls.releases) or (cls.engine,)

    @property
    def name(self) -> str:
        """The name of its profile."""
        return f"{self.engine}:{self.release}" if self.release else self.engine

    # --- what a profile asks ----------------------------------------------------------------------

    def algorithm(self, name: Any) -> Algorithm:
        """The algorithm of that name; `InvalidProfileError` lists those that are allowed."""
        return self.algorithms[
            choice("algorithm", name, self.algorithms, error=InvalidProfileError)
        ]

    @abstractmethod
    def root(
        self, algorithm: Algorithm, namespace: str, seed: str | None, random_root: bool
    ) -> tuple[bytes, bool]:
        """The parent of every first block, and whether another process gets the same one.

        `seed` and `random_root` are not given both. Raises `InvalidProfileError` for what this
        dialect has no root for.
        """

    def lookahead(self, tokens: Any) -> int:
        """`tokens`, the number of tokens after a block in its key, if the dialect has such keys."""
        count = integer("lookahead_tokens", tokens, error=InvalidProfileError)
        if count:
            raise InvalidProfileError("lookahead_tokens", count, f"{self.name} has none: use 0")
        return count

    # --- what a hasher asks -----------------------------------------------------------------------

    def chain(self, algorithm: Algorithm, root: bytes) -> Chain:
        """What turns tokens and extras into digests. `root` is the profile's: hashes that are not
        chained, but hold what the root is made of, need it in every block."""
        return HashChain(algorithm)

    @abstractmethod
    def extras(
        self, request: Any, start: int, stop: int, block_size: int, ahead: int, resumed: bool
    ) -> Extras | None:
        """What stands in the key of each block of tokens [start, stop) beside its tokens.

        None for a block that has nothing, and for all if none has. `ahead` is the profile's
        lookahead, whose tokens the caller adds: (extras, token, ..., token). `resumed`: an engine
        hashes these blocks in another call than those before them. What holds for the whole request
        (a salt that becomes part of the root) is an extra of block 0. A request of tokens alone has
        no extras and is not asked for.
        """

    def replaced_ids(self, request: Any, start: int, stop: int) -> Sequence[tuple[int, int]]:
        """(position, id) of those tokens in [start, stop) that are hashed as another id."""
        return ()

    def check_dropped(self, request: Any) -> None:
        """Refuses a request with a part that the hashes would leave out."""
        for part in self.drops:
            value = getattr(request, part, None)
            if value is not None and not (isinstance(value, (str, list, tuple)) and not value):
                problem = f"{self.name} hashes leave it out: two that differ in it would be equal"
                raise InvalidRequestError(part, value, problem)

    def check_lasting(self, request: Any) -> None:
        """Refuses a request of which hashes that outlive the process must not be made."""
        return None

    def int64(self, block_hash: bytes) -> int:
        """The 64 bits of a hash that its engine reports: here the last, unsigned."""
        return int.from_bytes(block_hash[-8:], "big")
