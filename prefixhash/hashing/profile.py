"""`HashProfile`: how a block's key is built: algorithm, key schema, root of the chain."""

from __future__ import annotations

import os
import re
import sys
import warnings
from dataclasses import dataclass, field
from operator import index

from prefixhash.errors import InvalidProfileError
from prefixhash.hashing import _cbor
from prefixhash.hashing.algorithms import Algorithm, get_algorithm
from prefixhash.request.tokens import is_integer

# Minor releases whose keys are known, byte for byte; anything else is refused rather than guessed.
KNOWN_VLLM_MINORS = range(19, 34)
# What vLLM hashes to get its root when PYTHONHASHSEED is unset (0.29 and newer, SHA-256 only).
VLLM_DEFAULT_SEED = "vllm-none-hash"
_STRICT_ROOT_TAG = "prefixhash/1"


class CollisionRiskWarning(UserWarning):
    """The algorithm is fast but not collision resistant."""


@dataclass(frozen=True)
class KeySchema:
    """What stands in the extras of a block's key.

    `name`: `strict` or the first vLLM release with these keys. `tagged`: each part begins with its
    kind. `media_from_last`: a call for later blocks looks at the last media item only.
    `zero_embedding_ids`: of a mixed prompt, positions that hold an embedding count as token 0.
    """

    name: str
    tagged: bool
    media_from_last: bool
    zero_embedding_ids: bool

    @property
    def is_strict(self) -> bool:
        """Whether these are this package's own keys rather than vLLM's."""
        return self.name == "strict"


STRICT = KeySchema("strict", tagged=True, media_from_last=False, zero_embedding_ids=True)
_VLLM_19 = KeySchema("vllm-0.19", tagged=False, media_from_last=True, zero_embedding_ids=False)
_VLLM_29 = KeySchema("vllm-0.29", tagged=False, media_from_last=True, zero_embedding_ids=True)
_VLLM_31 = KeySchema("vllm-0.31", tagged=True, media_from_last=False, zero_embedding_ids=True)


@dataclass(frozen=True)
class HashProfile:
    """How the hash of a block is made. Build it with `strict` or `vllm`.

    `root` is the parent of every first block. `lookahead_tokens` tokens after a block stand in its
    key, and the block is hashed only once they exist. `is_reproducible` is False where the root is
    random: hashes of such a profile mean nothing to another process.
    """

    name: str
    algorithm: Algorithm
    schema: KeySchema
    root: bytes = field(repr=False)
    lookahead_tokens: int = 0
    is_reproducible: bool = True

    def __post_init__(self) -> None:
        ahead = self.lookahead_tokens
        if not is_integer(ahead) or ahead < 0:
            raise InvalidProfileError("lookahead_tokens", ahead, "must be 0 or more tokens")
        object.__setattr__(self, "lookahead_tokens", index(ahead))
        if ahead and self.schema != _VLLM_31:
            raise InvalidProfileError("lookahead_tokens", ahead, "only vLLM's keys have them")

    @classmethod
    def strict(
        cls,
        algorithm: str = "sha256_cbor",
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
        chosen = get_algorithm(algorithm)
        _check_root_arguments(seed, root, random_root)
        _check_text(namespace, "namespace")
        if root is not None and namespace:
            raise InvalidProfileError("namespace", namespace, "root is given, which replaces it")
        if not chosen.collision_resistant and seed is None and root is None:
            random_root = True
        if root is None:
            nonce = os.urandom(32) if random_root else None
            # CBOR for every algorithm: no pickle, whose bytes could tell equal strings apart.
            root = chosen.digest(_cbor.encode((_STRICT_ROOT_TAG, namespace, seed, nonce)))
        _warn_of_collisions(chosen)
        return cls("strict", chosen, STRICT, root, is_reproducible=not random_root)

    @classmethod
    def vllm(
        cls,
        version: str,
        algorithm: str = "sha256",
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
        minor = _vllm_minor(version)
        chosen = get_algorithm(algorithm)
        if isinstance(seed, int) and not isinstance(seed, bool):
            seed = str(seed)
        _check_root_arguments(seed, root, random_root)
        if lookahead_tokens and minor < 33:
            raise InvalidProfileError(
                "lookahead_tokens", lookahead_tokens, "vLLM has them since 0.33: use 0"
            )
        if root is None:
            root = _vllm_root(minor, chosen, seed, random_root)
        schema = _VLLM_31 if minor >= 31 else _VLLM_29 if minor >= 29 else _VLLM_19
        _warn_of_collisions(chosen)
        name = f"vllm:0.{minor}"
        return cls(name, chosen, schema, root, lookahead_tokens, is_reproducible=not random_root)

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
        """The profile that a command line names: `strict` or `vllm:VERSION`."""
        if name == "strict":
            algorithm = algorithm or "sha256_cbor"
            return cls.strict(algorithm, namespace, seed=seed, random_root=random_root)
        engine, _, version = name.partition(":")
        if engine != "vllm" or not version:
            raise InvalidProfileError("profile", name, f"known: {', '.join(known_profiles())}")
        if namespace:
            raise InvalidProfileError("namespace", namespace, "vLLM's keys have none: use strict")
        return cls.vllm(version, algorithm or "sha256", seed, random_root=random_root)


def known_profiles() -> tuple[str, ...]:
    """The names that `HashProfile.parse` takes."""
    return ("strict", *(f"vllm:0.{minor}" for minor in KNOWN_VLLM_MINORS))


def _vllm_minor(version: str) -> int:
    match = re.fullmatch(
        r"v?0\.([1-9]\d*)(?:\.\d+)?(?:\.?(?:post|rc|dev)\d+)*(?:\+[\w.]+)?", str(version)
    )
    if match is None or int(match[1]) not in KNOWN_VLLM_MINORS:
        known = ", ".join(f"0.{minor}" for minor in KNOWN_VLLM_MINORS)
        raise InvalidProfileError("version", version, f"keys are known for vLLM {known}")
    return int(match[1])


def _vllm_root(minor: int, algorithm: Algorithm, seed: object, random_root: bool) -> bytes:
    fixed = minor >= 29 and algorithm.collision_resistant
    if seed is None and not random_root and not fixed:
        raise InvalidProfileError(
            "seed",
            None,
            f"vLLM 0.{minor} draws a random root for {algorithm.name}: start the engine with "
            "PYTHONHASHSEED set and give that value as seed, give the engine's NONE_HASH as root, "
            "or ask for random_root=True",
        )
    if not random_root:
        return algorithm.hash(VLLM_DEFAULT_SEED if seed is None else seed)
    # Before 0.29 the random bytes were the root themselves, 32 of them even for XXH3-128.
    return os.urandom(32) if minor < 29 else algorithm.hash(os.urandom(32).hex())


def _check_root_arguments(seed: object, root: object, random_root: bool) -> None:
    if seed is not None:
        _check_text(seed, "seed")
    if root is not None and not (isinstance(root, bytes) and len(root) >= 16):
        raise InvalidProfileError("root", root, "must be at least 16 bytes")
    if (seed is not None) + (root is not None) + bool(random_root) > 1:
        raise InvalidProfileError(
            "random_root" if random_root else "root",
            random_root or root,
            "give only one of seed, root and random_root",
        )


def _check_text(value: object, argument: str) -> None:
    try:
        if isinstance(value, str):
            value.encode()
            return
    except UnicodeEncodeError:
        pass
    raise InvalidProfileError(argument, value, "must be a string that UTF-8 can encode")


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
