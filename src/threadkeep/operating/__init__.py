"""What the operator's verbs do beyond one plan: which threads are meant, one after the other, and what is made of answers.

    rounds.py      activity, sizes, stats: every thread asked, and added up     moments.py   times as people say them
    branching.py   rollback, fork, tag
    policies.py    retention policies, in Python or in threadkeep.toml          sweeping.py  prune and sweep by them
    upkeep.py      verify, compact                                              doctor.py    a storage's facts, judged

Long work is a generator (`threadkeep.work`); what happens to one thread is a plan in `engine/`. Transfers are in `transfer/`.
"""
