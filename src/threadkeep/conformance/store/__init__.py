"""The tests of the store suite, one subject a file. They are run through `store_suite`, which has their fixtures."""

from threadkeep.conformance.declared import rewrite_asserts

rewrite_asserts(__name__, __path__)
