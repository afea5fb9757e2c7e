"""The measured services: adapters per request, popularity, locality, and cache loads."""

import numpy as np

from takeup.core.report import Cell, Check, Column, Series, Source, Table
from takeup.core.seeds import Streams
from takeup.papers import Findings, Numbers
from takeup.serving.model import Access
from takeup.serving.scheduling.adapters import ADAPTER_POLICIES
from takeup.serving.simulate.adapter_cache import replay_adapters
from takeup.serving.traces.adapter_accesses import MEASURED, generate_accesses

KINDS = tuple(MEASURED)
SIZES = range(1, 11)
INDEPENDENT_NOTE = "hangs on how many requests the drawn instances have: 0.29 to 0.34 for service B; shown, not judged"


def counts(expected: Numbers) -> Findings:
    """Number of adapters per request (Table 1): printed, and drawn."""
    part, rows, checks = expected["counts"], list[tuple[Cell, ...]](), []
    for kind, mean in zip(sorted(KINDS, key=lambda one: (one.endswith("lora"), one)), part["means"], strict=True):
        lengths = np.array([len(access.adapters) for access in _accesses(kind, expected)])
        ours = [100 * float(np.mean(lengths == number)) for number in range(4)]
        rows += [(kind, "paper", *part[kind], mean), (kind, "drawn", *ours, float(lengths.mean()))]
        gap = max(abs(one - other) for one, other in zip(ours, part[kind], strict=True))
        checks += [
            Check.near(f"{kind}: adapters of a request", float(lengths.mean()), mean, part["tolerance"]),
            Check.at_most(f"{kind}: largest gap of the shares", gap, part["tolerance_percent"], unit="%"),
        ]
    columns = (Column("kind"), Column("from"), *(Column(str(number), "%", 1) for number in range(4)), Column("mean"))
    return Findings(tuple(checks), (Table("Adapters of a request (Table 1)", columns, tuple(rows)),))


def popularity(expected: Numbers) -> Findings:
    """Share of uses by the most popular ControlNets, and number of LoRAs for given shares of uses."""
    top, part = expected["popular_controlnets"], expected["popular_loras"]
    rows, checks = list[tuple[Cell, ...]](), []
    for kind, number, percent in zip(top["services"], top["num_top"], top["percent"], strict=True):
        ours = 100 * dict(MEASURED[kind].cumulative)[number]
        rows.append((kind, f"uses of the first {number}, %", percent, ours))
        checks.append(Check.near(f"{kind}: uses of the first {number}", ours, percent, top["tolerance"], unit="%"))
    for kind in ("a-lora", "b-lora"):
        ranks, shares = zip((0, 0.0), *MEASURED[kind].cumulative, strict=True)
        for percent, number in zip(part["percent"], part[kind], strict=True):
            ours = float(np.interp(percent / 100, shares, ranks))
            rows.append((kind, f"LoRAs for {percent} % of uses", number, ours))
            tolerance = max(1.0, part["tolerance_share"] * number)
            checks.append(Check.near(f"{kind}: LoRAs for {percent} %", ours, number, tolerance, source="measured"))
    columns = (Column("kind"), Column("what"), Column("theirs", digits=0), Column("ours", digits=0))
    curves: list[dict[str, Cell]] = [
        {"service": kind, "rank": rank, "uses": 100 * share}
        for kind in ("a-lora", "b-lora")
        for rank, share in MEASURED[kind].cumulative
    ]
    chart = Series("Popularity of LoRAs", "rank", "uses", tuple(curves), "service", y_unit="%")
    return Findings(tuple(checks), (Table("How few serve how much (Figure 5)", columns, tuple(rows)),), (chart,))


def locality(expected: Numbers) -> Findings:
    """Distinct LoRAs and loads of LRU: drawn with the measured distances, and drawn independently."""
    part, rows, checks = expected["locality"], list[tuple[Cell, ...]](), []
    for place, kind in enumerate(part["services"]):
        drawn = _accesses(kind, expected)
        independent = _independent_accesses(kind, drawn, expected["setting"]["seed"])
        unique, unique_independent = _distinct_per_request(drawn), _distinct_per_request(independent)
        lru, lru_independent = _loads("lru", drawn, 10), _loads("lru", independent, 10)
        rows += [
            (kind, "distinct LoRAs for a request", part["unique"][place], unique, unique_independent),
            (kind, "loads of LRU, 10 LoRAs", MEASURED[kind].lru_loads[9], lru, lru_independent),
        ]
        for name, ours, key, why in (
            ("distinct LoRAs", unique, "unique", ""),
            ("distinct LoRAs if independent", unique_independent, "unique_if_independent", INDEPENDENT_NOTE),
            ("loads if independent", lru_independent, "lru_10_if_independent", ""),
        ):
            source: Source = "unverified" if why else "measured"
            theirs = part[key][place]
            tolerance = part["tolerance_share"] * theirs
            checks.append(Check.near(f"{kind}: {name}", ours, theirs, tolerance, source=source, why=why))
    columns = (Column("kind"), Column("what"), Column("measured"), Column("drawn"), Column("drawn independently"))
    note = "requests repeat what an instance had; drawn without that, caches would look almost useless"
    return Findings(tuple(checks), (Table("Locality (Figures 6 and 7)", columns, tuple(rows), note),))


def caches(expected: Numbers) -> Findings:
    """Loads per request under LRU and LFU, for caches of 1 to 10 adapters on every instance (Figure 6)."""
    tolerance, rows, checks = expected["caches"]["tolerance_share"], list[tuple[Cell, ...]](), []
    points: list[dict[str, Cell]] = []
    for kind in KINDS:
        accesses, measured = _accesses(kind, expected), MEASURED[kind]
        first_uses = len({(one.instance, adapter) for one in accesses for adapter in one.adapters[:1]}) / len(accesses)
        for policy, theirs in (("lru", measured.lru_loads), ("lfu", measured.lfu_loads)):
            ours = [_loads(policy, accesses, size) for size in SIZES]
            rows += [(kind, policy, "measured", *theirs), (kind, policy, "drawn", *ours)]
            named = {"kind": kind, "policy": policy}
            points += [{**named, "cache": size, "loads": loads} for size, loads in zip(SIZES, ours, strict=True)]
            if policy == "lru":
                slack = 0.0 if kind.endswith("lora") else first_uses
                worst = max(_excess(mine, other, slack) for mine, other in zip(ours, theirs, strict=True))
                name = f"{kind}: loads of LRU, largest gap"
                checks.append(Check.at_most(name, worst, tolerance, source="measured"))
    columns = (Column("kind"), Column("policy"), Column("from"), *(Column(str(size)) for size in SIZES))
    note = (
        "few instances are drawn, so the first uses of ControlNets on each weigh more: the gap allows for them; "
        "distances are drawn, not popularity on an instance, so LFU does worse on drawn ControlNets than on real ones"
    )
    table = Table("Loads for a request by size of the cache (Figure 6)", columns, tuple(rows), note)
    chart = Series("Loads by size of the cache", "cache", "loads", tuple(points), "policy", "kind", y_unit="1/request")
    return Findings(tuple(checks), (table,), (chart,))


def _accesses(kind: str, expected: Numbers) -> list[Access]:
    return generate_accesses(kind, expected["setting"]["num_instances"], expected["setting"]["seed"])


def _independent_accesses(kind: str, drawn: list[Access], seed: int) -> list[Access]:
    """The same number of adapters per request, each drawn by popularity alone."""
    ranks, shares = zip((0, 0.0), *MEASURED[kind].cumulative, strict=True)
    chances = iter(Streams(seed).stream(f"independent {kind}").random(sum(len(one.adapters) for one in drawn)))
    return [
        Access(one.instance, tuple(int(np.interp(next(chances), shares, ranks)) for _ in one.adapters)) for one in drawn
    ]


def _distinct_per_request(accesses: list[Access]) -> float:
    return len({(one.instance, adapter) for one in accesses for adapter in one.adapters}) / len(accesses)


def _loads(policy: str, accesses: list[Access], size: int) -> float:
    return replay_adapters(policy, ADAPTER_POLICIES[policy], accesses, capacity=size).loads_per_request


def _excess(ours: float, theirs: float, slack: float) -> float:
    """The relative gap, beyond what first uses explain."""
    return max(0.0, abs(ours - theirs) - slack) / theirs
