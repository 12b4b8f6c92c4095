-- Store and remove memories of one partition. KEYS: memories, expiry, spaces, times, vectors, changes, partitions.
-- ARGV: now, the partition's name, whether only what has expired is removed; then, each with their number before them,
-- puts (number, how its place begins, created, updated, expires, ttl, row, its vectors with their number before them) and removed ones (number,
-- how its place began). How many were removed.
local memories, expiry, spaces, times, vectors, changes, partitions = unpack(KEYS)
local now, name, only_expired = tonumber(next_one()), next_one(), next_one() == '1'
local stored, lost, removed = false, false, 0

local function forget_vectors(number, from, to)
  for n = from, to - 1 do
    redis.call('HDEL', vectors, number .. ':' .. n)
    redis.call('ZREM', changes, number .. ':' .. n)
    lost = true
  end
end

local puts = {}
for _ = 1, next_number() do
  local number, space, created, updated = next_one(), next_one(), next_one(), next_one()
  local expires, ttl, row = next_one(), next_one(), next_one()
  local before = memory(memories, number)
  if before and lives(before, now) then created = before[1] end
  local count = next_number()
  redis.call('HSET', memories, number, table.concat({created, updated, expires, count, ttl}, ',') .. '\n' .. row)
  redis.call('ZADD', spaces, 0, space .. number)
  redis.call('ZADD', times, updated, number)
  if expires ~= '' then redis.call('ZADD', expiry, expires, number) else redis.call('ZREM', expiry, number) end
  if before then forget_vectors(number, count, tonumber(before[4])) end
  for n = 0, count - 1 do
    redis.call('HSET', vectors, number .. ':' .. n, next_one())
    puts[#puts + 1] = number .. ':' .. n
    stored = true
  end
end
for _ = 1, next_number() do
  local number, space = next_one(), next_one()
  local before = memory(memories, number)
  if before and not (only_expired and lives(before, now)) then
    forget_vectors(number, 0, tonumber(before[4]))
    redis.call('HDEL', memories, number)
    redis.call('ZREM', spaces, space .. number)
    redis.call('ZREM', times, number)
    redis.call('ZREM', expiry, number)
    removed = removed + 1
  end
end
if stored then
  local seq = redis.call('HINCRBY', vectors, 'seq', 1)
  for _, field in ipairs(puts) do redis.call('ZADD', changes, seq, field) end
end
if lost then redis.call('HINCRBY', vectors, 'lost', 1) end
if redis.call('EXISTS', memories) == 1 then
  redis.call('ZADD', partitions, 0, name)
elseif not lost and not stored and redis.call('HLEN', vectors) == 0 then
  redis.call('ZREM', partitions, name)
end
return removed
