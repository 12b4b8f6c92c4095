"""Tests of the store suite, one subject per file. `store_suite` exports them and defines their fixtures."""

from threadkeep.conformance.collect import rewrite_asserts

rewrite_asserts(__name__, __path__)
