"""Parts that policies are made of.

`partial_plan` holds subcarriers and core schedules under construction and assigns subcarriers, `bounds` has the
relaxations, `market` prices with the bound they prove and plans made with them, `column_generation` the master problem,
its prices and the best columns, `compiled` the kernels.
"""
