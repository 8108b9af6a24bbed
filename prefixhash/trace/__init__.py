"""Traces: formats, synthesis, replay and the hit-rate curve."""
