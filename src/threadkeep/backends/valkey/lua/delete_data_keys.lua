-- Deletes data keys. KEYS: data keys, their names in order. ARGV: names.
for _, name in ipairs(ARGV) do
  redis.call('HDEL', KEYS[1], name)
  redis.call('ZREM', KEYS[2], name)
end
return 1
