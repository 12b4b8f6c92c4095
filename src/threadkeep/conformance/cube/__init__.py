"""The tests of the cube suite, one subject a file. They are run through `cube_suite`, which has their fixtures."""

from importlib.util import find_spec

from threadkeep.conformance.declared import rewrite_asserts

if find_spec("cubeloop") is None:
    raise ImportError(
        "threadkeep.conformance.cube_suite needs CubeLoop, which is not installed: pip install 'threadkeep[cube]'"
    )
rewrite_asserts(__name__, __path__)
