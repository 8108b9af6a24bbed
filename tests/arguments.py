"""One good call of every public callable; the property test spoils it argument by argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from prefixhash import (
    BlockHasher,
    BlockPool,
    CacheGroup,
    CacheHit,
    CacheOptions,
    CoarseBlockHashes,
    HashProfile,
    LoRARequest,
    MultiModalFeature,
    PlaceholderRange,
    PrefixCache,
    Request,
    layout,
    media_identifier,
    trace,
)
from prefixhash.events import (
    BlockStored,
    EventIndex,
    StoredTokens,
    check_events,
    codec,
    read_messages,
)
from prefixhash.pool import ResidencySampler
from prefixhash.request import RequestLine, read_request_lines

from .conftest import DATA


@dataclass
class Call:
    """A call that works with `arguments`; `state` is what a refused one must leave as it is."""

    function: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    state: Callable[[], Any] = lambda: None


Make = Callable[[], Call]


def _pool() -> BlockPool:
    pool = BlockPool(8, events=True)
    pool.cache(pool.allocate(3), [b"a", b"b", b"c"], 0)
    pool.free([3])
    return pool


def _pool_state(pool: BlockPool) -> Any:
    counts = [pool.ref_count(block) for block in range(pool.num_blocks)]
    return counts, pool.free_block_ids(), pool.cached_hashes()


def _about() -> StoredTokens:
    return StoredTokens(None, list(range(8)), 4)


def pool_calls() -> Iterator[tuple[str, Make]]:
    def on(method: str, **arguments: Any) -> tuple[str, Make]:
        def make() -> Call:
            pool = _pool()
            return Call(getattr(pool, method), arguments, lambda: _pool_state(pool))

        return f"BlockPool.{method}", make

    keywords = {"enable_caching": True, "events": False, "medium": "GPU", "residency": None}
    yield "BlockPool", lambda: Call(BlockPool, {"num_blocks": 5, **keywords})
    yield on("allocate", n=2)
    for method in ("free", "touch", "evict", "count_free"):
        yield on(method, block_ids=[1, 2])
    yield on("cache", block_ids=[1, 2], block_hashes=[b"d", b"e"], group=1, about=_about())
    yield on("carries", block_ids=[1, 2], block_hashes=[b"a", b"b"], group=0)
    yield on("report_reuse", block_hashes=[b"a", b"b"], group=0, about=_about())
    yield on("lookup", block_hash=b"a", group=0)
    yield on("longest_prefix", block_hashes=[b"a", b"b"], group=0)
    for method in ("ref_count", "block_hash", "block_hashes"):
        yield on(method, block_id=1)
    yield on("reset", force=False)
    for method in ("take_events", "free_block_ids", "cached_hashes", "check"):
        yield on(method)
    yield (
        "ResidencySampler",
        lambda: Call(ResidencySampler, {"sample_rate": 0.5, "seed": 1, "clock": lambda: 0.0}),
    )


def events_calls() -> Iterator[tuple[str, Make]]:
    stored = BlockStored((b"12345678", b"23456789"), None, tuple(range(8)), 4)

    def on(method: str, **arguments: Any) -> tuple[str, Make]:
        def make() -> Call:
            index = EventIndex([stored])
            return Call(getattr(index, method), arguments, index.keys)

        return f"EventIndex.{method}", make

    yield "EventIndex", lambda: Call(EventIndex, {"events": [stored]})
    yield on("apply", events=[BlockStored((b"k",))])
    yield on("keys")
    yield on("parent", block_hash=b"12345678", group=0)
    yield on("orphans", group=0)
    yield on("resident_prefix", block_hashes=[b"12345678"], group=0)
    yield "check_events", lambda: Call(check_events, {"messages": []})
    recording = Path(__file__).parent / "data" / "events.jsonl"
    yield "read_messages", lambda: Call(lambda path: list(read_messages(path)), {"path": recording})
    payload = codec.encode_events([stored], 1.0)
    yield "decode_events", lambda: Call(codec.decode_events, {"payload": payload})
    encoded = {
        "events": [stored],
        "ts": 1.0,
        "data_parallel_rank": 0,
        "hashes_as_bytes": False,
    }
    yield "encode_events", lambda: Call(codec.encode_events, encoded)
    yield "wire_hash", lambda: Call(codec.wire_hash, {"block_hash": b"1" * 8, "as_bytes": True})


def cache_calls() -> Iterator[tuple[str, Make]]:
    hasher = BlockHasher(4)

    def on(method: str, **arguments: Any) -> tuple[str, Make]:
        def make() -> Call:
            cache = PrefixCache.single(20, 4)
            request = Request("r", range(20), block_hasher=hasher)
            waiting = Request("w", range(24), block_hasher=hasher)
            cache.allocate(request, 20)
            cache.commit(request, 20)
            known = {"request": request, "waiting": waiting, "hit": cache.lookup(waiting)}
            known["batch"] = [request]
            given = {key: known.get(str(value), value) for key, value in arguments.items()}
            return Call(
                getattr(cache, method),
                given,
                lambda: (_pool_state(cache.pool), cache.stats, cache.num_running),
            )

        return f"PrefixCache.{method}", make

    group = {"kind": "sliding_window", "block_size": 4, "window": 9, "chunk": None}
    group |= {"speculative_blocks": 0, "eagle": False}
    yield "CacheGroup", lambda: Call(CacheGroup, dict(group))
    yield (
        "CacheGroup chunked",
        lambda: Call(CacheGroup, {"kind": "chunked_local", "block_size": 4, "chunk": 8}),
    )
    options = {name: getattr(CacheOptions(), name) for name in CacheOptions.__dataclass_fields__}
    yield "CacheOptions", lambda: Call(CacheOptions, dict(options))
    groups = [CacheGroup("full_attention", 4)]
    given = {"groups": groups, "num_blocks": 9, "options": None, **options}
    yield "PrefixCache", lambda: Call(PrefixCache, dict(given))
    single = {"num_blocks": 9, "block_size": 4, "watermark": 0.1}
    yield "PrefixCache.single", lambda: Call(PrefixCache.single, dict(single))
    yield "CacheHit.none", lambda: Call(CacheHit.none, {"num_groups": 2})
    yield on("lookup", request="waiting")
    admission = {
        "num_new_tokens": 4,
        "hit": "hit",
        "num_lookahead_tokens": 0,
        "num_encoder_tokens": 0,
        "whole_sequence": None,
    }
    yield on("allocate", request="waiting", **admission)
    for method in ("trim", "free", "preempt", "num_computed_tokens"):
        yield on(method, request="request")
    batch = {"requests": "batch", "num_new_tokens": 1, "num_lookahead_tokens": 0}
    yield on("allocate_batch", **batch)
    yield on("commit_batch", requests="batch", num_computed_tokens=[20])
    yield on("commit", request="request", num_computed_tokens=20)
    yield on("block_table", request="request", group=0)
    yield on("chunk_tokens", request="waiting", num_new_tokens=5, hit="hit")
    yield on("reset", new_generation=False)
    yield on("check", pinned=[])
    for method in ("common_prefix_blocks", "take_events"):
        yield on(method)


def request_calls() -> Iterator[tuple[str, Make]]:
    hasher = BlockHasher(4)

    def on(method: str, **arguments: Any) -> tuple[str, Make]:
        def make() -> Call:
            request = Request("r", range(20), block_hasher=hasher)
            return Call(
                getattr(request, method),
                arguments,
                lambda: (list(request.all_token_ids), list(request.block_hashes)),
            )

        return f"Request.{method}", make

    feature = MultiModalFeature("i", PlaceholderRange(1, 2))
    fields = {
        "request_id": "r",
        "token_ids": [1, 2, 3, 4],
        "block_hasher": hasher,
        "lora_request": LoRARequest("l"),
        "mm_features": [feature],
        "prompt_embeds": np.zeros((4, 2), np.float32),
        "prompt_is_token_ids": [True, True, True, False],
        "cache_salt": "s",
    }
    yield "Request", lambda: Call(Request, dict(fields))
    yield on("append_token_ids", ids=[1, 2])
    yield on("truncate", num_tokens=5)
    yield on("lowest_cut_since", num_truncations=0)
    yield "PlaceholderRange", lambda: Call(PlaceholderRange, {"offset": 0, "length": 1})
    position = PlaceholderRange(0, 1)
    media = {"identifier": "i", "mm_position": position, "modality": "image"}
    yield "MultiModalFeature", lambda: Call(MultiModalFeature, dict(media))
    line = {
        "token_ids": [1, 2, 3, 4],
        "lora_request": LoRARequest("l"),
        "mm_features": (feature,),
        "cache_salt": "s",
        "request_id": "r",
        "timestamp": 1.0,
        "output_tokens": 5,
        "session": "a",
        "turn": 1,
        "kind": "chat",
    }
    yield "RequestLine", lambda: Call(RequestLine, dict(line))
    yield (
        "RequestLine.request",
        lambda: Call(
            RequestLine([1, 2, 3, 4]).request, {"request_id": "r", "block_hasher": hasher}
        ),
    )
    lines = DATA / "requests.jsonl"
    yield (
        "read_request_lines",
        lambda: Call(lambda path: list(read_request_lines(path)), {"path": lines}),
    )
    lora = {"lora_name": "l", "lora_path": "/p", "revision": "2"}
    yield "LoRARequest", lambda: Call(LoRARequest, dict(lora))


def hashing_calls() -> Iterator[tuple[str, Make]]:
    hasher = BlockHasher(4)
    request = Request("r", range(20), block_hasher=hasher)

    strict = {"algorithm": "sha256", "namespace": "n", "seed": None, "root": None}
    yield (
        "HashProfile.strict",
        lambda: Call(HashProfile.strict, {**strict, "random_root": False}),
    )
    vllm = {"version": "0.33", "algorithm": "sha256", "seed": "0", "lookahead_tokens": 0}
    yield (
        "HashProfile.vllm",
        lambda: Call(HashProfile.vllm, {**vllm, "root": None, "random_root": False}),
    )
    parsed = {"name": "vllm:0.33", "algorithm": "sha256", "seed": "0", "namespace": ""}
    yield (
        "HashProfile.parse",
        lambda: Call(HashProfile.parse, {**parsed, "random_root": False}),
    )
    yield (
        "BlockHasher",
        lambda: Call(BlockHasher, {"block_size": 4, "profile": HashProfile.strict()}),
    )
    yield (
        "BlockHasher.__call__",
        lambda: Call(lambda request: hasher(request), {"request": request}),
    )
    tokens = {"token_ids": [1, 2, 3, 4], "parent": b"0" * 32}
    yield "BlockHasher.hash_tokens", lambda: Call(hasher.hash_tokens, dict(tokens))
    keys = {"request": request, "block_index": 0}
    yield "BlockHasher.extra_keys", lambda: Call(hasher.extra_keys, dict(keys))
    yield "BlockHasher.check_request", lambda: Call(hasher.check_request, {"request": request})
    yield "BlockHasher.num_full_blocks", lambda: Call(hasher.num_full_blocks, {"num_tokens": 9})
    yield "BlockHasher.num_tokens_of", lambda: Call(hasher.num_tokens_of, {"num_blocks": 9})
    coarse = {"block_hashes": request.block_hashes, "factor": 2}
    yield "CoarseBlockHashes", lambda: Call(CoarseBlockHashes, dict(coarse))
    yield "media_identifier", lambda: Call(media_identifier, {"value": b"x"})


def layout_calls() -> Iterator[tuple[str, Make]]:
    head = {"num_kv_heads": 1, "head_size": 8, "dtype": "float16"}
    full = layout.FullAttentionSpec(block_size=16, **head)
    window = layout.SlidingWindowSpec(block_size=16, window=40, **head)
    mla = layout.MLAAttentionSpec(block_size=16, head_size=8, dtype="float16")
    layers = {"a": full, "b": window}
    groups = layout.group_layers(layers)
    latent = {"block_size": 16, "head_size": 8, "dtype": "float16"}
    mamba = {"block_size": 16, "state_shapes": ((4,),), "state_dtypes": ("float32",)}
    specs: dict[type[Any], dict[str, Any]] = {
        layout.FullAttentionSpec: {"block_size": 16, **head},
        layout.SlidingWindowSpec: {"block_size": 16, "window": 40, **head},
        layout.ChunkedLocalAttentionSpec: {"block_size": 16, "chunk": 64, **head},
        layout.CrossAttentionSpec: {"block_size": 16, **head},
        layout.EncoderOnlyAttentionSpec: {"block_size": 16, **head},
        layout.MLAAttentionSpec: latent,
        layout.HiddenStateSpec: latent,
        layout.SlidingWindowMLASpec: {**latent, "window": 40},
        layout.MambaSpec: {**mamba, "speculative_blocks": 1},
    }
    for kind, fields in specs.items():
        yield kind.__name__, lambda kind=kind, fields=fields: Call(kind, dict(fields))
    memory = 1 << 24
    options = layout.PlanOptions()
    planned = {name: getattr(options, name) for name in layout.PlanOptions.__dataclass_fields__}
    for name, function, arguments in (
        ("PlanOptions", layout.PlanOptions, planned),
        ("LayerSpec.block_need", full.block_need, {"options": options}),
        ("LayerSpec.with_block_size", full.with_block_size, {"block_size": 32}),
        ("LayerSpec.padded_to", full.padded_to, {"page_size": 4096}),
        ("LayerSpec.aligned_to", full.aligned_to, {"alignment": 64}),
        ("KVCacheGroup", layout.KVCacheGroup, {"layer_names": ("a",), "spec": full}),
        ("KVCacheGroup.of", layout.KVCacheGroup.of, {"layers": {"a": full}}),
        ("group_layers", layout.group_layers, {"layer_specs": layers, "options": options}),
        (
            "plan_kv_cache",
            layout.plan_kv_cache,
            {"layer_specs": layers, "available_memory": memory, "options": options},
        ),
        (
            "plan_workers",
            layout.plan_workers,
            {"layer_specs": [layers], "available_memory": [memory], "options": options},
        ),
        (
            "pack_kv_cache",
            layout.pack_kv_cache,
            {"groups": groups, "available_memory": memory, "num_blocks_override": 4},
        ),
        (
            "lay_out_kv_cache",
            layout.lay_out_kv_cache,
            {
                "groups": groups,
                "available_memory": memory,
                "cross_layer_packing": False,
                "num_blocks_override": 4,
            },
        ),
        ("lay_out_block", layout.lay_out_block, {"groups": groups, "cross_layer_packing": True}),
        ("blocks_needed", layout.blocks_needed, {"groups": groups, "options": options}),
        ("bytes_needed", layout.bytes_needed, {"groups": groups, "options": options}),
        (
            "check_enough_memory",
            layout.check_enough_memory,
            {"groups": groups, "available_memory": memory, "options": options, "worker": 0},
        ),
        (
            "estimate_max_model_len",
            layout.estimate_max_model_len,
            {"groups": groups, "available_memory": memory, "options": options},
        ),
        (
            "auto_fit_max_model_len",
            layout.auto_fit_max_model_len,
            {"groups_per_worker": [groups], "available_memory": [memory], "options": options},
        ),
        ("approximate_gcd", layout.approximate_gcd, {"values": [4, 6], "lower_bound": 2}),
        ("equal_group_size", layout.equal_group_size, {"counts": [4, 6], "options": options}),
        ("merge_specs", layout.merge_specs, {"layers": {"a": full}}),
        ("same_type", layout.same_type, {"specs": [full, full]}),
        ("unify_page_sizes", layout.unify_page_sizes, {"layers": layers}),
        ("split_layers", layout.split_layers, {"num_layers": 8, "stages": 2}),
        ("slot_packed", layout.slot_packed, {"slot_bytes": 8}),
        ("storage_of", layout.storage_of, {"kv_dtype": "auto", "model_dtype": "bfloat16"}),
        ("MultipleOf", layout.MultipleOf, {"base": 16}),
        (
            "select_kernel_block_size",
            layout.select_kernel_block_size,
            {"block_size": 32, "supported": [[16, 32]]},
        ),
        ("select_common_layout", layout.select_common_layout, {"supported": [["NHD", "HND"]]}),
        (
            "resolve_block_sizes",
            layout.resolve_block_sizes,
            {
                "groups": groups,
                "block_size": 16,
                "context_ranks": 1,
                "prefix_caching": True,
                "connector": False,
                "hash_block_size": 16,
            },
        ),
        (
            "align_attention_with_states",
            layout.align_attention_with_states,
            {
                "bytes_per_token": 64,
                "state_bytes": 4096,
                "kernel_block_sizes": [16],
                "block_size": 16,
                "state_cache_mode": "none",
                "state_block_size": None,
                "equal_pages": False,
            },
        ),
        (
            "grow_quantised_blocks",
            layout.grow_quantised_blocks,
            {"quantised": full, "others": [full], "kernel_block_sizes": [16]},
        ),
        ("bucket_layers_by_page_size", layout.bucket_layers_by_page_size, {"groups": groups}),
        ("group_layer_tuples", layout.group_layer_tuples, {"families": [{"a": mla}]}),
        ("project_groups", layout.project_groups, {"groups": groups, "owned": {"a"}}),
        ("known_model_types", layout.known_model_types, {}),
    ):
        yield (
            name,
            lambda function=function, arguments=arguments: Call(function, dict(arguments)),
        )
    plan = layout.plan_kv_cache(layers, memory)
    blocks = layout.lay_out_block(groups)
    views = {"groups": groups, "layout": blocks, "num_blocks": 4, "layouts": None}
    yield "tensor_views", lambda: Call(layout.tensor_views, dict(views))
    yield "KVCachePlan.slot", lambda: Call(plan.slot, {"layer_name": "a"})
    tensors = {"device": "cpu", "layouts": None, "kernel_block_sizes": None}
    yield "KVCachePlan.allocate", lambda: Call(plan.allocate, dict(tensors))
    for method in ("blocks_needed", "bytes_needed"):
        yield (
            f"KVCachePlan.{method}",
            lambda method=method: Call(getattr(plan, method), {"length": 100}),
        )
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
    }
    serving = {
        "block_size": 16,
        "tensor_parallel": 1,
        "kv_dtype": "auto",
        "model_dtype": "auto",
        "state_dtype": "auto",
        "state_cache_mode": "none",
        "max_model_len": 4096,
        "speculative_tokens": 0,
    }
    for reader in (layout.read_model_config, layout.specs_from_model_config):
        yield (
            reader.__name__,
            lambda reader=reader: Call(reader, {"config": config, **serving}),
        )
    weighed = {"config": config, "block_size": 16, "tensor_parallel": 1, "kv_dtype": "auto"}
    yield "bytes_per_block", lambda: Call(layout.bytes_per_block, dict(weighed))
    model = layout.read_model_config(config)
    yield "ModelLayers.stages", lambda: Call(model.stages, {"count": 2, "partition": None})
    yield "ModelLayers.workers", lambda: Call(model.workers, {"pipeline_parallel": 2})
    yield "ModelLayers.options", lambda: Call(model.options, {"auto_fit": True})


def trace_calls() -> Iterator[tuple[str, Make]]:
    requests = list(trace.synthesize("chat", form="tokens", seed=1))[:20]
    curve = trace.hit_rate_curve(requests, block_size=16)
    file = DATA / "mooncake.jsonl"
    options = {
        "capacities": (100, "50%", "inf"),
        "policies": ("lru",),
        "counts": ("tokens",),
        "order": "tail-first",
        "by_ids": False,
        "block_size": 16,
        "concurrency": 1,
        "timed": False,
        "speed": trace.Speed(),
        "warmup": 0,
        "commit_output": False,
        "oversize": "clip",
        "bytes_per_block": None,
    }
    workload = trace.make_workload("chat")
    changes = {name: getattr(workload, name) for name in trace.Workload.__dataclass_fields__}
    for name, function, arguments in (
        ("ReplayOptions", trace.ReplayOptions, options),
        ("Speed", trace.Speed, {"prefill": 1000.0, "decode": 10.0}),
        (
            "replay",
            trace.replay,
            {"trace": requests, "trace_block_size": 16, "options": None, "survey": None, **options},
        ),
        (
            "hit_rate_curve",
            trace.hit_rate_curve,
            {
                "trace": requests,
                "block_size": 16,
                "count": "tokens",
                "order": "tail-first",
                "warmup": 0,
                "sample": 1.0,
            },
        ),
        ("HitRateCurve.rate_at", curve.rate_at, {"capacity": 10}),
        ("HitRateCurve.error_at", curve.error_at, {"capacity": 10}),
        ("HitRateCurve.capacity_for", curve.capacity_for, {"share": 0.5}),
        ("HitRateCurve.points", curve.points, {"most": 10}),
        ("HitRateCurve.reuse_distances", curve.reuse_distances, {}),
        ("find_definition", trace.find_definition, {"name": "tokens"}),
        ("make_policy", trace.make_policy, {"name": "fifo", "capacity": 5, "order": "tail-first"}),
        ("Future", trace.Future, {"requests": [([1, 2], 2)]}),
        ("Future.uses", trace.Future([([1, 2], 2)]).uses, {"index": 0, "num_ids": 2}),
        ("make_workload", trace.make_workload, {"name": "chat", **changes}),
        ("Workload", trace.Workload, changes),
        ("record_of", trace.record_of, {"request": requests[0]}),
        ("survey_trace", trace.survey_trace, {"trace": requests, "block_size": 16}),
        (
            "synthesize",
            lambda **given: next(iter(trace.synthesize(**given))),
            {"workload": "chat", "form": "mooncake", "block_size": 512, "seed": 0},
        ),
        (
            "read_trace",
            lambda **given: list(trace.read_trace(**given)),
            {
                "path": file,
                "format": "auto",
                "block_size": 512,
                "skip_bad": False,
                "interleave": False,
            },
        ),
    ):
        yield (
            name,
            lambda function=function, arguments=arguments: Call(function, dict(arguments)),
        )


CALLS: dict[str, dict[str, Make]] = {
    room.__name__.removesuffix("_calls"): dict(room())
    for room in (
        cache_calls,
        events_calls,
        hashing_calls,
        layout_calls,
        pool_calls,
        request_calls,
        trace_calls,
    )
}
