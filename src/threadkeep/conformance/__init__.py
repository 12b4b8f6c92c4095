"""The contract of LangGraph's stores and savers as pytest tests that anybody can run on a backend of their own.

A test file imports everything from `store_suite` or `saver_suite` and gives a fixture `store` or `saver`. The tests are
in `store/` and `saver/`, one subject a file. Each is a plain function that runs in both colours; none knows the backend.
Nothing else in threadkeep imports this package, or needs pytest.
"""

from importlib.util import find_spec

if find_spec("pytest") is None:
    raise ImportError("threadkeep.conformance needs pytest, which is not installed: pip install pytest")
