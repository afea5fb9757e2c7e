"""Controllers in processes of their own, so that tests can kill them: `slurm_controller.py CONF JOURNAL`.

Every line of the input is a command: `start POLICY SHARE` makes a controller whose quota is a share of the cluster and
answers with its process id, `kill` ends it as a power failure would. Controllers are forked from a process that has
loaded everything, so a new one is at work within milliseconds.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from takeup.cluster.contract import StaticQuota
from takeup.cluster.engines.slurm import SlurmEngine
from takeup.cluster.model import Decision, Hold, Job, Kind, Node, State, Waiting
from takeup.cluster.policies import find_policy
from takeup.core.clock import WallClock
from takeup.core.control import ApplyOutcome, ControlLoop

PERIOD_S = 0.2


def tell(decision: Decision, outcome: ApplyOutcome) -> None:
    if not isinstance(decision, Hold):
        print(outcome, decision, file=sys.stderr, flush=True)


def work(conf: Path, journal: Path, policy: str, capacity_share: float) -> None:
    """Control Slurm until somebody kills us."""
    clock = WallClock()
    ControlLoop(
        clock,
        SlurmEngine(journal, conf=conf),
        find_policy(policy, StaticQuota(capacity_share)),
        PERIOD_S,
        on_decision=tell,
        on_problem=lambda text: print(text, file=sys.stderr, flush=True),
    ).start()
    clock.run()


def warm_up() -> None:
    """Load the compiled pass before anybody waits for it."""
    waiting = Waiting(Job("1", Kind.HIGH, "research", "a100", 8), 0.0)
    find_policy("gfs", StaticQuota(0.5)).decide(State(0.0, (Node("n0", "a100", 8),), (), (waiting,)))


def main(conf: str, journal: str) -> None:
    warm_up()
    child = 0
    print("ready", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            child = 0
        if command == "start":
            child = os.fork()
            if child == 0:
                work(Path(conf), Path(journal), arguments[0], float(arguments[1]))
        print(child, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
