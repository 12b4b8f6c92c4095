-- Stores a data key if there is none of this name, or if the stored one is the expected one. Returns the one stored then.
-- KEYS: data keys, their names in order. ARGV: name, key, expected key (empty: none).
local stored = redis.call('HGET', KEYS[1], ARGV[1])
if stored and (ARGV[3] == '' or stored ~= ARGV[3]) then return stored end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
return ARGV[2]
