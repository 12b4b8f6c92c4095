-- Let memories that have a ttl live that long from now on. KEYS: memories, expiry. ARGV: now, then numbers.
local now = tonumber(next_one())
while at < #ARGV do
  local number = next_one()
  local before = memory(KEYS[1], number)
  if before and before[5] ~= '' and lives(before, now) then
    local expires = string.format('%.0f', now + math.floor(tonumber(before[5]) * 60000000))
    before[3] = expires
    redis.call('HSET', KEYS[1], number, table.concat(before, ',', 1, 5) .. '\n' .. before[6])
    redis.call('ZADD', KEYS[2], expires, number)
  end
end
return 1
