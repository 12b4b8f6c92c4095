"""What the shipped compression dictionary is trained and judged on.

Text never comes from the standard library: the benchmark's does.
"""
