"""The agreement of all savers with the model, over many more and longer histories."""

from __future__ import annotations

from hypothesis import settings

from test_agreement import Agreement, TestAgreement


class Longer(Agreement):
    """The same rules."""


TestLonger = Longer.TestCase
TestLonger.settings = settings(TestAgreement.settings, max_examples=500, stateful_step_count=60)
del TestAgreement  # it is collected where it stands
