"""Location of a slowdown: which rank or link causes it, from the times of the calls of all ranks.

matching.py         calls of all ranks matched with each other; the call that marks iterations
accounts.py         time of every rank in own work, waiting and transfers
suspects.py         slow ranks and links, and slowdowns caused by busy cores
standing.py         ranks that are slow all the time, or pause, compared with others in their role
whatif.py           what a recorded job would gain without each cause of delay
"""
