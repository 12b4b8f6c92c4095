-- Deletes what is left of a partition that has no memories and no vectors. KEYS: as in `write_memories`. ARGV: its name.
local memories, vectors, partitions = KEYS[1], KEYS[5], KEYS[8]
local counters = redis.call('HEXISTS', vectors, 'seq') + redis.call('HEXISTS', vectors, 'lost')
if redis.call('EXISTS', memories) == 0 and redis.call('HLEN', vectors) == counters then
  redis.call('UNLINK', unpack(KEYS, 1, 7))
  redis.call('ZREM', partitions, ARGV[1])
end
return 1
