"""What at least two domains share: time, chance, tables, statistics, reports, and the loop around policy and engine."""
