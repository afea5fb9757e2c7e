"""Planner of edit steps, pure: which activations each block loads and which it computes, from a cost model."""
