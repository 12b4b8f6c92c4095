"""Tests of the saver suite, one subject per file. `saver_suite` exports them and defines their fixtures."""

from threadkeep.conformance.collect import rewrite_asserts

rewrite_asserts(__name__, __path__)
