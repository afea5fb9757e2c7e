"""Scheduling decisions, all pure: queue order and admission, adapter eviction, routing of requests and of edits."""
