"""Tests of the cube suite, one subject per file. `cube_suite` exports them and defines their fixtures."""

from importlib.util import find_spec

from threadkeep.conformance.collect import rewrite_asserts

if find_spec("cubeloop") is None:
    raise ImportError(
        'threadkeep.conformance.cube_suite needs CubeLoop, which is not installed: pip install "threadkeep[cube]"'
    )
rewrite_asserts(__name__, __path__)
