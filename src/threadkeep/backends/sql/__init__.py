"""What all SQL backends share: requests to named SQL blocks, and rows to records.

A dialect (`backends.sqlite`, `backends.postgres`) states only what differs.
"""
