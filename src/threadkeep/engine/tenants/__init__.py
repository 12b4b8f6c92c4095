"""Tenants: the row that a tenant has if it has keys or a quota, and the data keys of its partitions of memories.

`requests` is what is requested from a backend. May import `plan` and `value`.
"""
