"""Stragglers of a training job: which rank or link is slow, what that costs, and what to do about it (FALCON).

    calls of all ranks ──> detect/ ──> locate/ ──> SlowdownEvent ──> remedy/ ──> Finding, with actions
           │                change     rank, link,                   shares, schedule,     │
        watch/ (ring buffers)          busy host                     restart        watch/ carries them out

contract.py   call logs, events, findings; the protocols `Detector` and `RemedyPolicy`; open this first
detect/       change points in iteration times; the detector that consumes call logs
locate/       which rank or link causes a slowdown, from the times of its calls
remedy/       remediation.py decides; restart.py: when a restart pays; rebalance.py: shares of a batch
watch/        attaches to a PyTorch job, records calls in ring buffers, carries out remedies, and reports

All rooms but watch/ are pure. Only the times of communication calls are used.
"""
