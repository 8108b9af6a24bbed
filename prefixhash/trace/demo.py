"""The built-in trace of `prefixhash replay --demo`."""

from __future__ import annotations

from prefixhash.trace.formats.tokens import Tokens
from prefixhash.trace.records import TraceRequest
from prefixhash.trace.synth import make_workload, synthesize

DEMO_NAME = "demo"
# From a pool that the largest prompts just fit in.
DEMO_CAPACITIES = ("10%", "20%", "30%", "50%", "100%", "inf")


def demo_trace() -> list[TraceRequest]:
    """Chats and agents of three tenants with shared prompts, documents, adapters and images.

    The same on every machine; replayed in a few seconds.
    """
    plan = make_workload(
        "mixed", sessions=60, documents=6, document_tokens=1200, system_tokens=500, tool_calls=1.0
    )
    return list(synthesize(plan, form=Tokens.name, seed=1))
