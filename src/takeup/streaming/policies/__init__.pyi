from takeup.streaming.policies.solvers import SOLVERS as SOLVERS
from takeup.streaming.policies.solvers import ChainSolver as ChainSolver
from takeup.streaming.policies.solvers import find_solver as find_solver
