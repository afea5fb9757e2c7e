"""GPU fleet: forecast the demand that must be served, sell the rest with a promise, place and preempt with care."""
