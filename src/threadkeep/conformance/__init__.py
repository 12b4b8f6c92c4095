"""Conformance tests for your own store or checkpointer: the contracts of LangGraph and CubeLoop as pytest suites.

Import everything from `store_suite`, `saver_suite` (LangGraph) or `cube_suite` (CubeLoop) into a test file, and define
a fixture `store`, `saver` or `cube`. The tests are in `store/`, `saver/` and `cube/`, one subject per file. They know
no backend; LangGraph's verbs are tested sync and async. Only `cube_suite` needs CubeLoop.

Nothing else in threadkeep imports this package or needs pytest. This package imports nothing else of threadkeep.
"""

from importlib.util import find_spec

if find_spec("pytest") is None:
    raise ImportError("threadkeep.conformance needs pytest, which is not installed: pip install pytest")
