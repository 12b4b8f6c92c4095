"""The tests of the saver suite, one subject a file. They are run through `saver_suite`, which has their fixtures."""

from threadkeep.conformance.declared import rewrite_asserts

rewrite_asserts(__name__, __path__)
