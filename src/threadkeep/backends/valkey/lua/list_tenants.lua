-- Returns tenants in a slot after a name: those with threads, those with a row, and those with memories, encoded.
-- KEYS: the tenants of the partition, those that have a row in this slot, the partitions of memories in it.
-- ARGV: lower bounds of these three, limit.
local low, limit = ARGV[3], ARGV[4]
local found = {}
while #found < tonumber(limit) do
  local name = redis.call('ZRANGEBYLEX', KEYS[3], low, '+', 'LIMIT', 0, 1)[1]
  if not name then break end
  local _, stop = name:find('\0\1', 1, true)
  found[#found + 1] = name:sub(1, stop)
  low = '(' .. name:sub(1, stop) .. '\255'
end
return {
  redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], '(u', 'LIMIT', 0, limit),
  redis.call('ZRANGEBYLEX', KEYS[2], ARGV[2], '+', 'LIMIT', 0, limit), found
}
