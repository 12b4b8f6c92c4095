"""The Valkey and Redis backend: requests as Lua scripts (`lua/`) on keys of one slot."""
