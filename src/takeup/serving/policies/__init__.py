"""Policies of serving: batching, routing, admission, LoRA form and lateness, cache eviction, and template formats."""
