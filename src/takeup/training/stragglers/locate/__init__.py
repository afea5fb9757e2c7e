"""Location of a slowdown: which rank or link causes it, from the times of the calls of all ranks.

matching.py         calls of all ranks matched with each other; the call that marks iterations
accounts.py         time of every rank in own work, waiting and transfers
suspects.py         slow ranks and links, and slowdowns caused by busy cores
edge_colouring.py   all links of a job in the fewest passes
"""
