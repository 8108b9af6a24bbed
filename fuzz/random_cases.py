"""Feeds random bytes to a fuzz target, without a fuzzer.

python fuzz/random_cases.py kernel --cases 1000000 --seed 1
"""

from __future__ import annotations

import argparse
import random
import runpy
import sys
import time
from pathlib import Path

from prefixhash._compiled import KERNEL, WHY_NOT

FUZZ = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", help="NAME of fuzz_NAME.py")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.target == "kernel" and KERNEL != "native":
        print(f"nothing to compare: {WHY_NOT}", file=sys.stderr)
        return 1
    run = runpy.run_path(str(FUZZ / f"fuzz_{args.target}.py"))["TestOneInput"]
    rng = random.Random(args.seed)
    start = time.perf_counter()
    for case in range(args.cases):
        data = rng.randbytes(rng.choice((10, 100, 400, 1000)))
        try:
            run(data)
        except Exception:
            print(f"case {case} of seed {args.seed}: {data.hex()}", file=sys.stderr)
            raise
    seconds = time.perf_counter() - start
    print(f"{args.target}: {args.cases:,} random cases, no difference, {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
