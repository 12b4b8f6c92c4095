-- A batch of one thread, if the thread is as expected: 1, or 0. A tenth key is a new thread whose items were staged.
-- ARGV: expect, version, row, bytes, updated, created, member, id, last, greatest, kept (milliseconds, or nothing),
-- ends (1: the batch removes the thread, 2: the thread is replaced by the new one);
-- then, each with its number before it: gone rows (field), gone items (field), new rows and changed rows (field, place,
-- value), items (field, value), runs, gone runs.
-- A full server refuses the first write of a script if that needs memory, and no later one. So what frees comes first, if
-- there is something, and what is new begins with a write that can be refused.
local expect, version, row, grown, updated, created, member, id, last, greatest, kept, ends = unpack(ARGV, 1, 12)
local thread, order = KEYS[1], KEYS[2]
local before, size = unpack(redis.call('HMGET', thread, 'v', 'b'))
if (before or '') ~= expect then return 0 end
if ends == '2' then before, size = false, false end

at = 12
at = at + next_number()
at = at + next_number()
for _ = 1, next_number() do
  if before and redis.call('HEXISTS', thread, ARGV[at + 1]) == 1 then return 0 end
  at = at + 3
end
if ends == '1' then
  drop(member, id, last)
  return 1
end
if not before then
  redis.call('ZADD', KEYS[6], 0, id)
  drop(member, id, last)
  if KEYS[10] and redis.call('EXISTS', KEYS[10]) == 1 then
    redis.call('RENAME', KEYS[10], thread)
    redis.call('PERSIST', thread)
  end
  redis.call('ZADD', KEYS[4], created, member)
  redis.call('ZADD', KEYS[6], 0, id)
end

local function forget_place(field)
  redis.call('ZREM', order, field, 'h' .. field:sub(2))
end

at = 12
for _ = 1, next_number() do
  local field = next_one()
  redis.call('HDEL', thread, field)
  forget_place(field)
end
size = (tonumber(size) or 0) + tonumber(grown)
for _ = 1, next_number() do
  local field = next_one()
  size = size - redis.call('HSTRLEN', thread, field)
  redis.call('HDEL', thread, field)
end

-- Each call is sent to the replicas by itself: few with many values are better than many.
local values, places, changed = {'v', version, 'r', row, 'b', string.format('%.0f', size)}, {}, {}
for pass = 1, 2 do
  for _ = 1, next_number() do
    local field = next_one()
    places[#places + 1], places[#places + 2] = 0, next_one()
    values[#values + 1], values[#values + 2] = field, next_one()
    if pass == 2 then changed[#changed + 1] = field end
  end
end
for _ = 1, 2 * next_number() do values[#values + 1] = next_one() end
for i = 1, #values, 1000 do redis.call('HSET', thread, unpack(values, i, math.min(i + 999, #values))) end
for _, field in ipairs(changed) do forget_place(field) end

local runs = {}
for _ = 1, next_number() do
  local run = next_one()
  places[#places + 1], places[#places + 2] = 0, 'u' .. run
  runs[#runs + 1], runs[#runs + 2] = 0, run .. last
end
for i = 1, #places, 1000 do redis.call('ZADD', order, unpack(places, i, math.min(i + 999, #places))) end
for i = 1, #runs, 1000 do redis.call('ZADD', KEYS[8], unpack(runs, i, math.min(i + 999, #runs))) end
for _ = 1, next_number() do
  local run = next_one()
  redis.call('ZREM', order, 'u' .. run)
  redis.call('ZREM', KEYS[8], run .. last)
end

redis.call('ZADD', KEYS[3], updated, member)
redis.call('ZADD', KEYS[5], size, member)
local known = greatest ~= '' and redis.call('HGET', KEYS[9], member)
if greatest ~= '' and (not known or less(known, greatest)) then
  if known then redis.call('ZREM', KEYS[7], known .. last) end
  redis.call('ZADD', KEYS[7], 0, greatest .. last)
  redis.call('HSET', KEYS[9], member, greatest)
end
if kept ~= '' then
  redis.call('PEXPIRE', thread, kept)
  redis.call('PEXPIRE', order, string.format('%.0f', 2 * kept + 86400000))
end
return 1
