-- Deletes what is left of a partition that has no memories and no vectors. KEYS: as in `write_memories`. ARGV: its name.
local memories, expiry, namespaces, times, vectors, changes, words, partitions = unpack(KEYS)
local counters = redis.call('HEXISTS', vectors, 'seq') + redis.call('HEXISTS', vectors, 'lost')
if redis.call('EXISTS', memories) == 0 and redis.call('HLEN', vectors) == counters then
  redis.call('UNLINK', expiry, namespaces, times, vectors, changes, words)
  redis.call('ZREM', partitions, ARGV[1])
end
return 1
