"""Which rank or link causes a slowdown, from the calls of all ranks.

matching.py          calls of all ranks, matched; the call that marks iterations
accounts.py          time accounts of ranks: own work, waiting, transfers
links.py             slow links
suspects.py          slow ranks and links, or CPU contention
edge_colouring.py    test all links in the fewest passes
"""
