"""`HashProfile`: how the hash of a block is made: dialect, algorithm, root of the chain."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, field
from typing import Any

from prefixhash._arguments import flag, integer, is_integer, text
from prefixhash.errors import InvalidProfileError
from prefixhash.hashing import dialects
from prefixhash.hashing.algorithms import Algorithm
from prefixhash.hashing.dialects.base import Dialect
from prefixhash.hashing.dialects.strict import Strict
from prefixhash.hashing.dialects.vllm import Vllm

_LEAST_ROOT_BYTES = 16


class CollisionRiskWarning(UserWarning):
    """The algorithm is fast but not collision resistant."""


@dataclass(frozen=True)
class HashProfile:
    """How the hash of a block is made. Build it with `strict`, `vllm` or `parse`.

    `root` is the parent of every first block. `lookahead_tokens` tokens after a block stand in its
    key, and the block is hashed only once they exist. `is_reproducible` is False where the root is
    random: hashes of such a profile mean nothing to another process.
    """

    name: str = field(init=False)
    algorithm: Algorithm
    dialect: Dialect = field(repr=False)
    root: bytes = field(repr=False)
    lookahead_tokens: int = 0
    is_reproducible: bool = True

    def __post_init__(self) -> None:
        for name, kind in (("algorithm", Algorithm), ("dialect", Dialect), ("root", bytes)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                problem = f"must be of type {kind.__name__}: build profiles with strict or vllm"
                raise InvalidProfileError(name, value, problem)
        ahead = self.dialect.lookahead(self.lookahead_tokens)
        lasting = flag("is_reproducible", self.is_reproducible, error=InvalidProfileError)
        object.__setattr__(self, "name", self.dialect.name)
        object.__setattr__(self, "lookahead_tokens", ahead)
        object.__setattr__(self, "is_reproducible", lasting)

    @classmethod
    def strict(
        cls,
        algorithm: str = Strict.default_algorithm,
        namespace: str = "",
        *,
        seed: str | None = None,
        root: bytes | None = None,
        random_root: bool = False,
    ) -> HashProfile:
        """Keys that are injective by construction: equal only for what has equal KV.

        `namespace` names all that the requests do not say (model, revision, KV dtype, tensor
        layout); it goes into the root. `seed` is a secret or a name that deployments may share.
        `root` sets the root bytes themselves, `random_root` draws them. An xxhash algorithm, whose
        collisions can be made offline, gets a random root unless `seed` or `root` is given.
        """
        return cls._of(Strict(), algorithm, namespace, seed, root, random_root)

    @classmethod
    def vllm(
        cls,
        version: str,
        algorithm: str = Vllm.default_algorithm,
        seed: str | int | None = None,
        *,
        lookahead_tokens: int = 0,
        root: bytes | None = None,
        random_root: bool = False,
    ) -> HashProfile:
        """The hashes that vLLM `version` ("0.33" or "0.33.0") computes, byte for byte.

        `seed` is that engine's PYTHONHASHSEED; without one, 0.29 and newer have a fixed root for
        the SHA-256 algorithms, every other case is random in the engine, and an error here unless
        `random_root` says that the hashes stay in this process or `root` gives the engine's
        NONE_HASH. `lookahead_tokens` (0.33): the L > 0 tokens after a block that an EAGLE-type
        drafter adds to its key.
        """
        dialect = Vllm.of(version)
        if is_integer(seed):
            seed = str(integer("seed", seed, None))
        return cls._of(dialect, algorithm, "", seed, root, random_root, lookahead_tokens)

    @classmethod
    def parse(
        cls,
        name: str,
        algorithm: str | None = None,
        seed: str | None = None,
        *,
        namespace: str = "",
        random_root: bool = False,
    ) -> HashProfile:
        """The profile that a command line names, such as `strict` or `vllm:VERSION`.

        `known_profiles` lists the names; without an `algorithm` it is the dialect's own.
        """
        dialect = _named(text("profile", name, error=InvalidProfileError))
        if algorithm is None:
            algorithm = dialect.default_algorithm
        return cls._of(dialect, algorithm, namespace, seed, None, random_root)

    @classmethod
    def _of(
        cls,
        dialect: Dialect,
        algorithm: Any,
        namespace: Any,
        seed: Any,
        root: Any,
        random_root: Any,
        lookahead_tokens: Any = 0,
    ) -> HashProfile:
        chosen = dialect.algorithm(algorithm)
        namespace = text("namespace", namespace, error=InvalidProfileError)
        if seed is not None:
            seed = text("seed", seed, error=InvalidProfileError)
        _check_root_arguments(namespace, seed, root, random_root)
        ahead = dialect.lookahead(lookahead_tokens)
        lasting = True
        if root is None:
            root, lasting = dialect.root(chosen, namespace, seed, bool(random_root))
        _warn_of_collisions(chosen)
        return cls(chosen, dialect, root, ahead, lasting)


def known_profiles() -> tuple[str, ...]:
    """The names that `HashProfile.parse` takes."""
    return tuple(name for dialect in dialects.DIALECTS for name in dialect.names())


def _named(name: str) -> Dialect:
    engine, colon, version = name.partition(":")
    for dialect in dialects.DIALECTS:
        if dialect.engine == engine and bool(dialect.releases) == bool(colon) == bool(version):
            return dialect.of(version) if version else dialect()
    raise InvalidProfileError("profile", name, f"known: {', '.join(known_profiles())}")


def _check_root_arguments(namespace: str, seed: Any, root: Any, random_root: Any) -> None:
    if root is not None and not (isinstance(root, bytes) and len(root) >= _LEAST_ROOT_BYTES):
        problem = f"must be at least {_LEAST_ROOT_BYTES} bytes"
        raise InvalidProfileError("root", root, problem)
    drawn = flag("random_root", random_root, error=InvalidProfileError)
    if (seed is not None) + (root is not None) + drawn > 1:
        raise InvalidProfileError(
            "random_root" if drawn else "root",
            random_root or root,
            "give only one of seed, root and random_root",
        )
    if root is not None and namespace:
        raise InvalidProfileError("namespace", namespace, "root is given, which replaces it")


def _warn_of_collisions(algorithm: Algorithm) -> None:
    if not algorithm.collision_resistant:
        warnings.warn(
            f"{algorithm.name} is not collision resistant: whoever knows the root can make "
            "prompts that share blocks. Keep the root secret, or use a sha256 algorithm.",
            CollisionRiskWarning,
            stacklevel=_callers_stacklevel(),
        )


def _callers_stacklevel() -> int:
    """The stacklevel, for the caller of this function, of the code that asked for a profile."""
    level, frame = 0, sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    return level + 1
