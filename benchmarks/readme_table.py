"""The README's table of speed, in one command.

    python benchmarks/readme_table.py --vllm VENV/bin/python --dynamo VENV/bin/python [TRACE]

Each rival runs in its own interpreter, pinned below, side by side with this package in one process;
every ratio is of medians from such a process. The interpreters must be of the Python version that
the kernels were built for, and that of Dynamo needs `xxhash`, too. The paths may also stand in
PREFIXHASH_VLLM_PYTHON and PREFIXHASH_DYNAMO_PYTHON; without one, its columns stay empty. What is
measured is said in `bench_kernels.py`, `bench_pool.py`, `bench_steps.py` and `bench_traces.py`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bench_steps import decode_table, growth_table
from checkout import ROOT, cpu_name, make_parser

VLLM = "0.33.0"
DYNAMO = "1.6.1"
POOL_CALLS = ("allocate", "cache", "longest_prefix", "touch", "free", "evicting allocate")


def run(python: str, script: str, *arguments: str) -> Any:
    """The JSON that one of the benchmarks writes."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    for name in ("PREFIXHASH_VLLM_PYTHON", "PREFIXHASH_PURE"):  # the switch is given on
        environment.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        command = [python, str(ROOT / "benchmarks" / script), *arguments, "--json", str(file)]
        if os.environ["PREFIXHASH_PURE"] == "1":
            command.append("--pure")
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise SystemExit(f"{python}: {error.strerror}") from None
        if done.returncode:
            raise SystemExit(f"{script}: {done.stderr.strip()[-2000:]}")
        return json.loads(file.read_text(encoding="utf-8"))


def import_seconds(python: str, module: str, rounds: int) -> float:
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR"}
    runs = [
        subprocess.run(
            [python, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        for _ in range(rounds)
    ]
    return median(float(done.stdout.split()[-1]) for done in runs)


def table(head: str, rows: list[list[str]]) -> str:
    lines = [head, "|".join(["", *["---"] * (head.count("|") - 1), ""])]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}"


def ratio(rival: float | None, ours: float) -> str:
    return "-" if rival is None else f"{rival / ours:.1f}"


def hashing_table(figures: Any) -> str:
    rows = []
    for row in figures["hashing"]:
        vllm, floor = row.get("vllm"), row.get("floor")
        rows.append(
            [
                row["algorithm"],
                str(row["block_size"]),
                *(number(row[form]) for form in ("list", "buffer", "request")),
                number(vllm),
                ratio(vllm, row["list"]),
                ratio(row.get("vllm_request"), row["request"]),
                number(floor),
                "-" if floor is None else f"{row['buffer'] / floor:.1f}",
            ]
        )
    head = (
        "| algorithm | block | list, ns/block | buffer | request | vLLM | times faster, list "
        "| request | floor | buffer / floor |"
    )
    return table(head, rows)


def dynamo_table(figures: Any) -> str:
    rows = [
        [
            str(row["block_size"]),
            *(number(row[form]) for form in ("list", "buffer", "dynamo", "dynamo_buffer")),
            ratio(row["dynamo"], row["list"]),
            ratio(row["dynamo_buffer"], row["buffer"]),
        ]
        for row in figures["hashing"]
        if row["algorithm"] == "xxhash_cbor"
    ]
    head = (
        "| block | ours, list, ns/block | ours, buffer | Dynamo, list | Dynamo, buffer "
        "| times faster, list | buffer |"
    )
    return table(head, rows)


def pool_table(figures: Any, probes: dict[str, float], request_blocks: int) -> str:
    rows = []
    totals = {"ours": 0.0, "vllm": 0.0}
    floors = {"cache": "insert", "longest_prefix": "get", "evicting allocate": "delete"}
    for call in POOL_CALLS:
        sides = figures["pool"][call]
        ours, *rest = (median(sides[side]) * 1e9 / request_blocks for side in sorted(sides))
        vllm = rest[0] if rest else None
        totals["ours"] += ours
        totals["vllm"] += vllm or 0.0
        floor = number(probes[floors[call]]) if call in floors else "-"
        rows.append([call, number(ours), number(vllm), ratio(vllm, ours), floor])
    vllm = totals["vllm"] or None
    rows.append(["all", number(totals["ours"]), number(vllm), ratio(vllm, totals["ours"]), "-"])
    head = "| pool, ns/block | ours | vLLM | times faster | one probe of a dict |"
    return table(head, rows)


def other_table(pool: Any, traces: Any, kernels: Any, imports: dict[str, float]) -> str:
    rows = []
    for operation, sides in pool["admission"].items():
        ours = median(sides["ours"]) * 1e6
        vllm = median(sides["vllm"]) * 1e6 if "vllm" in sides else None
        rows.append([f"{operation}, us", number(ours), number(vllm), ratio(vllm, ours)])
    for trace in traces:
        curve = trace["curve"]
        text = f"{trace['trace']}: curve at {curve['capacities']:,} capacities, ms"
        rows.append([text, number(curve["seconds"] * 1e3), "-", "-"])
        for kind in ("engine", "ids"):
            rates = [trace[kind].get(f"{side}_requests_per_second") for side in ("ours", "vllm")]
            times = "-" if rates[1] is None else f"{rates[0] / rates[1]:.1f}"
            text = f"{trace['trace']}: replay ({kind}), requests/s"
            rows.append([text, *(number(rate) for rate in rates), times])
    used = kernels["memory"]
    times = ratio(used.get("vllm"), used["ours"])
    rows.append(
        ["memory of a pool, bytes/block", number(used["ours"]), number(used.get("vllm")), times]
    )
    rival = imports.get("vllm")
    milliseconds = None if rival is None else rival * 1e3
    rows.append(
        [
            "import, ms",
            number(imports["ours"] * 1e3),
            number(milliseconds),
            ratio(rival, imports["ours"]),
        ]
    )
    return table("| | ours | vLLM | times faster (or smaller) |", rows)


def check_pin(name: str, found: str | None, pinned: str) -> None:
    if found not in (None, pinned):
        print(f"note: {name} {found} is installed, {pinned} is pinned", file=sys.stderr)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--vllm", default=os.environ.get("PREFIXHASH_VLLM_PYTHON"))
    parser.add_argument("--dynamo", default=os.environ.get("PREFIXHASH_DYNAMO_PYTHON"))
    parser.add_argument("--rounds", default="20")
    parser.add_argument("--request-blocks", type=int, default=2_048)
    parser.add_argument("traces", nargs="*", metavar="TRACE", help="without one, a synthetic trace")
    args = parser.parse_args()
    python = args.vllm or sys.executable
    kernels = run(python, "bench_kernels.py", "--rounds", args.rounds)
    check_pin("vLLM", kernels["vllm"], VLLM)
    features = ", ".join(f"{name}: {text}" for name, text in kernels["features"].items())
    print(f"{cpu_name()}, Python {platform.python_version()}; {features}")
    print(
        f"vLLM {kernels['vllm']}; {kernels['tokens']:,} tokens; medians of {args.rounds} rounds\n"
    )
    print(hashing_table(kernels), end="\n\n")
    if args.dynamo:
        dynamo = run(args.dynamo, "bench_kernels.py", "--rounds", args.rounds)
        check_pin("ai-dynamo-runtime", dynamo["dynamo"], DYNAMO)
        print(f"xxhash_cbor beside ai-dynamo-runtime {dynamo['dynamo']}\n")
        print(dynamo_table(dynamo), end="\n\n")
    size = str(args.request_blocks)
    pool = run(python, "bench_pool.py", "--rounds", args.rounds, "--request-blocks", size)
    print(pool_table(pool, kernels["dict"], args.request_blocks), end="\n\n")
    steps = run(python, "bench_steps.py", "--rounds", args.rounds)
    print(decode_table(steps["decode"]), end="\n\n")
    print(growth_table(steps["growth"]), end="\n\n")
    traces = run(python, "bench_traces.py", *args.traces, "--rounds", "3")
    imports = {"ours": import_seconds(python, "prefixhash", 7)}
    if kernels["vllm"]:
        imports["vllm"] = import_seconds(python, "vllm.v1.core.kv_cache_utils", 1)
    print(other_table(pool, traces, kernels, imports))
    return 0


if __name__ == "__main__":
    sys.exit(main())
