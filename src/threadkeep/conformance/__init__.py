"""The contract of stores and savers as pytest tests that anybody can run on a backend of their own.

A test file imports everything from `store_suite`, `saver_suite` (both LangGraph's) or `cube_suite` (CubeLoop's) and gives
a fixture `store`, `saver` or `cube`. The tests are in `store/`, `saver/` and `cube/`, one subject a file. Each is a plain
function that runs in every colour that there is; none knows the backend. `cube_suite` alone needs CubeLoop.
Nothing else in threadkeep imports this package, or needs pytest.
"""

from importlib.util import find_spec

if find_spec("pytest") is None:
    raise ImportError("threadkeep.conformance needs pytest, which is not installed: pip install pytest")
