"""The scheduling pass in plain Python: slow, whole GPUs only, and without any array.

This is what the kernels must agree with, and what they are measured against.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from math import inf

from takeup.cluster.model import Grade, Job, Kind, Run, State
from takeup.cluster.scheduling import rules as rule
from takeup.cluster.scheduling.rules import SchedulerRules

Event = tuple[str, str, tuple[str, ...] | str]


def _fragments(free: int, artifact: bool = False) -> float:
    """GPUs that requests for two, four and eight cannot use, weighted by how common they are."""
    mix = {2: 0.10, 4: 0.05, 8: 0.50}
    return sum(share * (free - free // size if artifact else free % size) for size, share in mix.items())


@dataclass
class _PlainGangPlan:
    """The victims, and the node of each worker so far."""

    victims: set[str] = field(default_factory=set)
    nodes: list[str] = field(default_factory=list)


@dataclass
class PlainPass:
    """One pool of a state under rules; `quota_gpus` holds for every promise."""

    state: State
    rules: SchedulerRules
    quota_gpus: float
    log: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now_s = self.state.now_s
        self.runs = {run.job.id: run for run in self.state.runs}
        self.sizes = {node.name: node.num_gpus if node.healthy else 0 for node in self.state.nodes}
        jobs = [run.job for run in self.state.runs] + [wait.job for wait in self.state.waiting]
        jobs.sort(key=lambda job: (job.submit_s, job.id))
        self.number = {job.id: number for number, job in enumerate(jobs)}
        self.since_s = {wait.job.id: wait.since_s for wait in self.state.waiting}
        self.evicted = {wait.job.id: wait.num_evictions for wait in self.state.waiting}
        self.waiting = [wait.job for wait in self.state.waiting]

    def decide(self) -> list[Event]:
        """Serve high-priority jobs, then spot jobs, or all in one queue."""
        kinds: list[tuple[Kind, ...]] = (
            [(Kind.HIGH, Kind.SPOT)] if self.rules.one_queue else [(Kind.HIGH,), (Kind.SPOT,)]
        )
        for group in kinds:
            while self.serve_group(group) and self.rules.wait_price < inf:  # jobs that wait may fit in freed GPUs
                pass
        return self.log

    def serve_group(self, group: tuple[Kind, ...]) -> int:
        """Serve the waiting jobs in queue order; returns how many jobs were evicted for them."""
        order = self.rules.high_order if group[0] == Kind.HIGH else self.rules.spot_order
        failure = self.rules.high_failure if group[0] == Kind.HIGH else self.rules.spot_failure
        num_logged = len(self.log)
        self.serve(sorted((j for j in self.waiting if j.kind in group), key=lambda j: self.key(j, order)), failure)
        return sum(what == "evict" for what, *_ in self.log[num_logged:])

    def key(self, job: Job, order: int) -> tuple[float, ...]:
        """Sort key of a job in a queue of this order."""
        if order == rule.BY_ARRIVAL:
            return (self.number[job.id],)
        if order == rule.BY_FEWEST:
            return (job.num_gpus, self.number[job.id])
        return (-job.gpus_per_worker, job.num_workers if job.kind == Kind.SPOT else 0, self.number[job.id])

    def serve(self, queue: list[Job], failure: int) -> None:
        """Try every job without pruning: a job as large as one that failed must fail by itself."""
        for job in queue:
            if not self.start(job) and failure == rule.STOP:
                return

    def start(self, job: Job) -> bool:
        """Run a job if it can be done; the log says where."""
        grade = Grade.HIGH if job.kind == Kind.HIGH else self.terms(job)
        if grade is None:
            return False
        nodes = None if job.kind == Kind.HIGH and self.rules.straight else self.place(job)
        if nodes is None and job.kind == Kind.HIGH and self.rules.victims != rule.NOBODY:
            nodes = self.make_room(job)
        if nodes is None:
            return False
        self.runs[job.id] = Run(job, nodes, self.now_s, grade, self.now_s)
        self.waiting.remove(job)
        self.log.append(("start", job.id, nodes))
        return True

    def terms(self, job: Job) -> Grade | None:
        """On which terms a spot job may run; None if on none."""
        if not self.rules.uses_quota:
            return Grade.OPPORTUNISTIC
        every = [run for run in self.runs.values() if run.grade == Grade.GUARANTEED]
        live = [run for run in every if run.is_promised(self.now_s)]
        promised = [job, *(run.job for run in (live if self.rules.opportunistic else every))]
        held = sum(it.num_gpus for it in promised)
        if held <= self.quota_gpus and (job.guarantee_h > 0 or not self.rules.opportunistic):
            return Grade.GUARANTEED
        return Grade.OPPORTUNISTIC if self.rules.opportunistic else None

    def held(self, node: str, kind: Kind | None = None) -> int:
        """GPUs of a node that jobs hold, of one kind or of all."""
        chosen = (run for run in self.runs.values() if kind is None or run.job.kind == kind)
        return int(sum(run.nodes.count(node) * run.job.gpus_per_worker for run in chosen))

    def place(self, job: Job) -> tuple[str, ...] | None:
        """Nodes with idle GPUs for all workers; None if there are too few."""
        taken: dict[str, int] = dict.fromkeys(self.sizes, 0)
        nodes: list[str] = []
        asked = int(job.gpus_per_worker)
        for _ in range(job.num_workers):
            idle = {name: size - self.held(name) - taken[name] for name, size in self.sizes.items()}
            fitting = [name for name in idle if idle[name] >= asked]
            if not fitting:
                return None
            best = min(fitting, key=lambda name: self.score(job, name, idle[name], taken[name]))
            taken[best] += asked
            nodes.append(best)
        return tuple(nodes)

    def score(self, job: Job, node: str, idle: int, taken: int) -> float:
        """How a node is judged; the lowest is taken."""
        asked = int(job.gpus_per_worker)
        if self.rules.score == rule.BEST_FIT:
            return idle
        if self.rules.score == rule.SHELTERED:
            return idle - 100 * (self.held(node, Kind.HIGH) + (taken if job.kind == Kind.HIGH else 0))
        if self.rules.score == rule.PACKED:
            return 100 * (idle + 1) - self.held(node, job.kind) - taken
        artifact = self.rules.score == rule.FRAGMENT_ARTIFACT
        return _fragments(idle - asked, artifact) - _fragments(idle, artifact)

    def make_room(self, job: Job) -> tuple[str, ...] | None:
        """Nodes for all workers after evictions; None if that cannot be done."""
        plan = self.newest(job) if self.rules.victims == rule.NEWEST else self.node_by_node(job)
        high = [job.num_gpus, *(run.job.num_gpus for run in self.runs.values() if run.job.kind == Kind.HIGH)]
        nominal = self.rules.high_share * sum(node.num_gpus for node in self.state.nodes)
        if plan is None or sum(high) > nominal or not self.pays(job, plan):
            return None
        for name in sorted(plan.victims, key=self.number.__getitem__):
            victim = self.runs.pop(name)
            self.log.append(("evict", name, job.id))
            self.waiting.append(victim.job)
            self.since_s[name], self.evicted[name] = self.now_s, victim.num_evictions + 1
        return tuple(plan.nodes)

    def pays(self, job: Job, plan: _PlainGangPlan) -> bool:
        """Whether waiting until now has cost as much as what the evictions destroy."""
        if self.rules.wait_price == inf:
            return True
        spare = sum(self.runs[name].job.num_gpus for name in plan.victims) - job.num_gpus
        spot = sorted((it for it in self.waiting if it.kind == Kind.SPOT), key=lambda it: self.key(it, rule.BY_SIZE))
        for other in reversed(spot):
            spare -= other.num_gpus if 0 < other.num_gpus <= spare else 0
        restarts = sum(
            self.runs[name].job.num_gpus * (40 if self.runs[name].job.num_gpus <= 8 else 60) for name in plan.victims
        )
        waited_s = self.now_s - self.since_s[job.id]
        cost = sum(map(self.lost, plan.victims)) + restarts
        return cost <= waited_s * (self.rules.wait_price * job.num_gpus - max(0.0, spare))

    def idle(self, node: str, plan: _PlainGangPlan, asked: int) -> int:
        """GPUs of a node that a plan may still use."""
        staying = [run for name, run in self.runs.items() if name not in plan.victims]
        used = sum(run.nodes.count(node) * run.job.gpus_per_worker for run in staying)
        return int(self.sizes[node] - used - plan.nodes.count(node) * asked)

    def evictable(self, plan: _PlainGangPlan) -> list[str]:
        """Spot jobs that may be evicted and are not in the plan."""
        spot = [name for name, run in self.runs.items() if run.job.kind == Kind.SPOT and name not in plan.victims]
        old = [name for name in spot if self.now_s - self.runs[name].start_s >= self.rules.min_runtime_s]
        return sorted(old, key=self.number.__getitem__)

    def node_by_node(self, job: Job) -> _PlainGangPlan | None:
        """Worker after worker on the node where it costs least."""
        plan, asked = _PlainGangPlan(), int(job.gpus_per_worker)
        for _ in range(job.num_workers):
            choices = [(*self.choose(node, asked, plan), node) for node in self.sizes]
            possible = [choice for choice in choices if choice[0] is not None]
            if not possible:
                return None
            _prices, victims, node = min(possible, key=lambda choice: choice[0] or ())
            plan.victims |= victims
            plan.nodes.append(node)
        if self.rules.victims == rule.CHEAPEST and job.num_workers > 1:
            self.spare_unneeded(job, plan)
        return plan

    def fits(self, job: Job, plan: _PlainGangPlan) -> bool:
        """Whether a plan has room for all workers."""
        asked = int(job.gpus_per_worker)
        return sum(max(0, self.idle(node, plan, asked)) // asked for node in self.sizes) >= job.num_workers

    def seat_tightly(self, job: Job, plan: _PlainGangPlan) -> None:
        """All workers on the tightest nodes."""
        asked = int(job.gpus_per_worker)
        for _ in range(job.num_workers):
            idle = {node: self.idle(node, plan, asked) for node in self.sizes}
            plan.nodes.append(min((node for node in idle if idle[node] >= asked), key=idle.__getitem__))

    def spare_unneeded(self, job: Job, plan: _PlainGangPlan) -> None:
        """Spare victims that later ones made redundant, most expensive first."""
        kept, plan.nodes = plan.nodes, []
        before = len(plan.victims)
        self.put_back(job, plan, sorted(plan.victims, key=lambda name: (-self.price(name), self.number[name])))
        if len(plan.victims) == before:
            plan.nodes = kept
        else:
            self.seat_tightly(job, plan)

    def put_back(self, job: Job, plan: _PlainGangPlan, names: list[str]) -> None:
        """Spare jobs in sequence, each if the remaining victims free enough."""
        for name in names:
            plan.victims.discard(name)
            if not self.fits(job, plan):
                plan.victims.add(name)

    def choose(self, node: str, asked: int, plan: _PlainGangPlan) -> tuple[tuple[float, float] | None, set[str]]:
        """The victims on a node, and its two prices; no prices if it cannot be done."""
        here = [name for name in self.evictable(plan) if node in self.runs[name].nodes]
        idle = self.idle(node, plan, asked)
        room = self.sizes[node] - self.held(node, Kind.HIGH) - plan.nodes.count(node) * asked
        if room < asked:
            return None, set()
        if self.rules.victims == rule.CHEAPEST:
            return self.cheapest(node, here, idle, asked, room)
        victims = set() if idle >= asked else self.in_order(node, here, asked - idle)
        if victims is None:
            return None, set()
        return self.prices(victims, room, asked), victims

    def gpus(self, names: set[str], node: str) -> int:
        """GPUs that jobs hold on a node."""
        return int(sum(self.runs[n].nodes.count(node) * self.runs[n].job.gpus_per_worker for n in names))

    def lost(self, name: str) -> float:
        """GPU-seconds that are gone if a job stops now."""
        return self.runs[name].job.num_gpus * (self.now_s - self.runs[name].saved_s)

    def price(self, name: str) -> float:
        """What the eviction of a job costs."""
        run = self.runs[name]
        restart_s = 40 if run.job.num_gpus <= 8 else 60
        cost = self.lost(name) + restart_s * run.job.num_gpus
        is_promised = run.grade == Grade.GUARANTEED and self.now_s - run.start_s < 3600 * run.job.guarantee_h
        return cost + (1e12 if is_promised else 0)

    def cheapest(
        self, node: str, here: list[str], idle: int, asked: int, room: int
    ) -> tuple[tuple[float, float] | None, set[str]]:
        """The cheapest sufficient subset of the evictable jobs on this node."""
        best: tuple[float, set[str]] | None = None
        for bits in product((0, 1), repeat=len(here)):
            chosen = {name for name, bit in zip(reversed(here), bits, strict=True) if bit}
            left = idle + self.gpus(chosen, node) - asked
            if left >= 0:
                cost = sum(self.price(name) for name in here if name in chosen)
                if best is None or cost < best[0]:
                    best = cost, chosen
        return (None, set()) if best is None else ((best[0], float(room)), best[1])

    def in_order(self, node: str, here: list[str], missing: int) -> set[str] | None:
        """Victims one after another, in the order of the rule; None if all free too little."""
        if self.gpus(set(here), node) < missing:
            return None
        run, how = self.runs, self.rules.victims
        if how == rule.TWO_POINTERS:
            return self.two_pointers(node, sorted(here, key=lambda name: -self.lost(name)), missing)
        if how == rule.FEWEST:
            chosen = set(here)
            for name in sorted(here, key=lambda name: run[name].start_s):
                if self.gpus(chosen - {name}, node) >= missing:
                    chosen.discard(name)
            return chosen
        sign = {rule.LARGEST_FIRST: -1, rule.SMALLEST_FIRST: 1}.get(how, 0)
        chosen = set()
        for name in sorted(here, key=lambda name: sign * run[name].job.num_gpus if sign else run[name].start_s):
            if self.gpus(chosen, node) < missing:
                chosen.add(name)
        return chosen

    def two_pointers(self, node: str, names: list[str], missing: int) -> set[str]:
        """As printed: G is what would be idle; remove jobs from it while enough is left."""
        total, victims = self.gpus(set(names), node), set()
        ends = [0, len(names) - 1]
        while ends[0] <= ends[1]:
            for side, step in ((0, 1), (1, -1)):
                while ends[0] <= ends[1] and total - self.gpus({names[ends[side]]}, node) >= missing:
                    total -= self.gpus({names[ends[side]]}, node)
                    ends[side] += step
                if ends[0] <= ends[1]:
                    victims.add(names[ends[side]])
                    ends[side] += step
        return victims

    def prices(self, victims: set[str], room: int, asked: int) -> tuple[float, float]:
        """By what nodes are compared, first and second."""
        how = self.rules.victims
        if how == rule.FEWEST:
            earliest_s = min((self.runs[name].start_s for name in victims), default=float("inf"))
            return len(victims), -earliest_s
        if how == rule.FRAGMENT_NODE:
            return _fragments(room - asked) - _fragments(room), 0
        if how == rule.TWO_POINTERS:
            window = len(self.sizes) * next(iter(self.state.nodes)).num_gpus * 744 * 3600
            lost = sum(self.lost(name) for name in sorted(victims, key=self.number.__getitem__))
            return room, 1e-4 * len(victims) + 5 * lost / window
        shares = sum(1 / self.runs[name].job.num_workers for name in victims)
        return room, 0 if how == rule.TIGHTEST else shares

    def newest(self, job: Job) -> _PlainGangPlan | None:
        """Evict the last started first until the gang fits; then spare victims that are not needed."""
        plan = _PlainGangPlan()
        order = sorted(self.evictable(plan), key=lambda name: -self.runs[name].start_s)
        for name in order:
            if self.fits(job, plan):
                break
            plan.victims.add(name)
        if not self.fits(job, plan):
            return None
        self.put_back(job, plan, [name for name in reversed(order) if name in plan.victims])
        self.seat_tightly(job, plan)
        return plan
