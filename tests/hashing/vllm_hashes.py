"""Random requests through vLLM's own `Request`, hashed by its hasher and by ours.

    PYTHONPATH=. PYTHONHASHSEED=7 VENV_WITH_VLLM/bin/python tests/hashing/vllm_hashes.py [COUNT]

Runs inside an environment that has vLLM (0.19 to 0.33) and compares three ways: vLLM's hasher on
vLLM's request, our hasher on vLLM's request, our hasher on our request. Prints one JSON object;
exit status 1 if any hash differs. `--record FILE` also writes what vLLM computed into FILE, under
its version.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

from vllm import SamplingParams
from vllm import __version__ as vllm_version
from vllm.lora.request import LoRARequest as EngineLoRA
from vllm.multimodal.inputs import MultiModalFeatureSpec
from vllm.multimodal.inputs import PlaceholderRange as EngineRange
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request as EngineRequest

import prefixhash as ph
from prefixhash.hashing import ALGORITHMS
from tests.hashing.random_cases import SEED, cases, embeds_of, our_request, summary

HAS_LOOKAHEAD = "num_hash_lookahead_tokens" in get_request_block_hasher.__code__.co_varnames
HAS_MASK = "prompt_is_token_ids" in EngineRequest.__init__.__code__.co_varnames


def fresh(text: str) -> str:
    """A string object of its own, as an engine core gets from its decoder."""
    return text.encode().decode()


def engine_request(case: dict[str, Any], hasher: Any) -> EngineRequest:
    known = case.get("tokens_known", True)
    lora = case.get("lora")
    extra = {"prompt_is_token_ids": case["mask"]} if case.get("mask") and HAS_MASK else {}
    request = EngineRequest(
        request_id="r",
        prompt_token_ids=list(case["tokens"]) if known else None,
        sampling_params=SamplingParams(max_tokens=10_000),
        pooling_params=None,
        prompt_embeds=embeds_of(case),
        mm_features=[
            MultiModalFeatureSpec(
                data=None,
                modality=fresh("image"),
                identifier=fresh(name),
                mm_position=EngineRange(offset=offset, length=length),
            )
            for name, offset, length in case.get("media", ())
        ],
        lora_request=EngineLoRA(fresh(lora[0]), 1, fresh(lora[1])) if lora else None,
        cache_salt=fresh(case["salt"]) if "salt" in case else None,
        block_hasher=hasher,
        **extra,
    )
    for ids in case["appended"]:
        request.append_output_token_ids(ids)
    return request


def compare(case: dict[str, Any], algorithm: str) -> tuple[list[bytes], list[str]]:
    """What vLLM makes of a case, and which of our ways differ from it."""
    hash_function = get_hash_fn_by_name(algorithm)
    init_none_hash(hash_function)
    ahead = case["lookahead"] if HAS_LOOKAHEAD else 0
    profile = ph.HashProfile.vllm(vllm_version, algorithm, SEED, lookahead_tokens=ahead)
    ours = ph.BlockHasher(case["block_size"], profile)
    theirs = get_request_block_hasher(case["block_size"], hash_function, *(ahead,) if ahead else ())
    expected: list[bytes] = engine_request(case, theirs).block_hashes
    requests = (engine_request(case, ours), our_request(case, ours))
    differing = [type(r).__module__ for r in requests if r.block_hashes != expected]
    return expected, differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=500)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore", ph.CollisionRiskWarning)
    blocks: Counter[str] = Counter()
    summaries: dict[str, list[str]] = {algorithm: [] for algorithm in ALGORITHMS}
    differing = []
    for number, case in enumerate(islice(cases(), args.count)):
        if case.get("mask") and not HAS_MASK:
            del case["mask"]
        for algorithm in ALGORITHMS:
            expected, ways = compare(case, algorithm)
            blocks[algorithm] += len(expected)
            summaries[algorithm].append(summary(expected))
            differing += [(number, algorithm, way) for way in ways]
    if args.record:
        known = json.loads(args.record.read_text()) if args.record.exists() else {}
        known[vllm_version] = summaries
        args.record.write_text(json.dumps(known, indent=1) + "\n")
    result = {"vllm": vllm_version, "requests": args.count, "blocks": blocks}
    print(json.dumps({**result, "differing": differing}))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
