"""Observability: what verbs cost, as OpenTelemetry spans and metrics, as a log of slow calls, and for `Keep.metrics`.

    measured.py   decide at `open` whether a Keep is measured, and make the parts below
    observer.py   the calls of verbs under way, and totals of those that ended
    adapters.py   the adapters' classes with measured verbs
    runner.py     which calls the requests of a plan, and the batches of several ops, are sent for
    transport.py  counts what is sent, and for which calls
    otel.py       OpenTelemetry
    metrics.py    what `Keep.metrics` returns

A Keep that is not measured uses nothing here except `metrics.py`. Nothing here gets to see values, ids or names that
users chose: a call is known by the name of its verb, an error by its class. Numbers are added without locks: each
addition is one step of the interpreter, and where it is not, a number may be a little too low.
"""
