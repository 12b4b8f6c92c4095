-- Stores or deletes the row of a tenant and returns 1; or 0, and changes nothing, if it has not the expected version.
-- KEYS: the row, the tenants that have a row in this slot. ARGV: expected version (empty: there is no row), tenant, then
-- fields and values; without these, the row is deleted.
if (redis.call('HGET', KEYS[1], 'version') or '') ~= ARGV[1] then return 0 end
redis.call('UNLINK', KEYS[1])
if #ARGV > 2 then
  redis.call('HSET', KEYS[1], unpack(ARGV, 3))
  redis.call('ZADD', KEYS[2], 0, ARGV[2])
else
  redis.call('ZREM', KEYS[2], ARGV[2])
end
return 1
