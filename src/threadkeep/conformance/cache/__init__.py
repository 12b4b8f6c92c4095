"""Tests of the cache suite, one subject per file. `cache_suite` exports them and defines their fixtures."""

from threadkeep.conformance.collect import rewrite_asserts

rewrite_asserts(__name__, __path__)
