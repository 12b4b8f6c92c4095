"""Adapters: what frameworks call. They translate and decide nothing; sync and async are one-line shells."""
