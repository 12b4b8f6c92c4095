"""Runnable examples: each file stands alone, needs no API key and cleans up after itself."""
