"""Pipeline-parallel training: schedules that absorb the delay of slow links (ADAPTRA).

contract.py     a planner turns a profile into a plan; open this first
profile.py      a measured pipeline: stages, links, memory
schedule.py     orders of operations, plans, timelines
planners/       ADAPTRA and its baselines; link estimates; when to switch
timing/         when every operation starts and ends; lower bounds (compiled)
simulate.py     iterations with jitter
engine/         an adaptive schedule for PyTorch
"""
