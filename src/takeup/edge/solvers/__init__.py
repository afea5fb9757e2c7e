"""Parts that policies are made of.

`partial_plan` holds subcarriers and core schedules under construction, `radio` assigns subcarriers, `bounds` has the
relaxations, `column_generation` the master problem and its prices, `pricers` the best columns at given prices,
`compiled` the kernels.
"""
