"""Talks: the threads of CubeLoop's agents. Messages that are only appended, what goes with them, and runs.

A talk is a thread of the kind `cube`, in the same log and rows as all others. Its newest checkpoint is its state; each
run begins a new one (without runs, each turn of the user), so older checkpoints show the talk as it was.

    ops.py        what callers want: append, merge, ask, claim, …
    ledger.py     events: runs, and which messages came with them
    form.py       how a talk's channels are held
    staging.py    ops into a draft, the batch that they make
    plans.py      write, load, snapshot, fork
    branches.py   rollback and fork of the operator's
    repair.py     a new checkpoint with what can be read
"""
