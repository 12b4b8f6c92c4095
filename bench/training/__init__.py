"""Sample items for training and measuring the compression dictionary.

Their text never comes from the standard library, because the benchmark's does.
"""
