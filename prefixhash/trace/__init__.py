"""Traces: what prefix reuse buys on them.

`read_trace` opens a trace of any known format, `synthesize` makes one; `replay` runs it against
caches of several sizes, `hit_rate_curve` gives the LRU hit rate at every size in one pass.
Hit rates carry the name of their definition (`DEFINITIONS`); caches evict by a policy (`POLICIES`).
"""

from __future__ import annotations

from prefixhash._compiled import prefer_twins

prefer_twins(__path__, "trace")

from prefixhash.trace.curve import hit_rate_curve
from prefixhash.trace.definitions import DEFINITIONS, Definition, find_definition
from prefixhash.trace.future import Future
from prefixhash.trace.hit_curve import HitRateCurve
from prefixhash.trace.holding import Speed
from prefixhash.trace.metering import Meter, Tally
from prefixhash.trace.policies import POLICIES, Policy, make_policy
from prefixhash.trace.reading import SkippedLine, Trace, read_trace
from prefixhash.trace.records import TokenPrompt, TraceRequest
from prefixhash.trace.replaying import replay
from prefixhash.trace.results import ReplayOptions, ReplayReport, ReplayResult
from prefixhash.trace.survey import Survey, survey_trace
from prefixhash.trace.synth import WORKLOADS, Workload, make_workload, synthesize
from prefixhash.trace.synth_forms import record_of

__all__ = [
    "DEFINITIONS",
    "POLICIES",
    "WORKLOADS",
    "Definition",
    "Future",
    "HitRateCurve",
    "Meter",
    "Policy",
    "ReplayOptions",
    "ReplayReport",
    "ReplayResult",
    "SkippedLine",
    "Speed",
    "Survey",
    "Tally",
    "TokenPrompt",
    "Trace",
    "TraceRequest",
    "Workload",
    "find_definition",
    "hit_rate_curve",
    "make_policy",
    "make_workload",
    "read_trace",
    "record_of",
    "replay",
    "survey_trace",
    "synthesize",
]
