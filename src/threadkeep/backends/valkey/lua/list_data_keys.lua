-- Returns data keys by name: name, key, name, key, and so on.
-- KEYS: data keys, their names in order. ARGV: lower bound, limit.
local found = {}
for _, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], '+', 'LIMIT', 0, ARGV[2])) do
  found[#found + 1], found[#found + 2] = name, redis.call('HGET', KEYS[1], name) or ''
end
return found
