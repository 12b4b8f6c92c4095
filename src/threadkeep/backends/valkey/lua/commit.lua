-- Applies a batch to one thread and returns 1. Returns 0 if the thread is not as expected, or -1 if the tenant is sealed
-- and the batch is not encrypted.
-- KEYS: those of a thread, and optionally a hash with the staged items of a new thread.
-- ARGV: expected version, version, row, bytes, updated, created, member, id, last, greatest, lifetime (milliseconds, or
-- empty), drops (1: the batch drops the thread, 2: a new thread replaces it, 0: neither), tenant, sealed (1: the batch is
-- encrypted); then lists, each after its length: removed rows (field), removed items (field), new rows and changed rows (field, member of the order, value),
-- items (field, value), runs, removed runs.
-- A full server refuses the first write of a script if it needs memory, but no later write. So writes that free memory
-- come first, if there are any, and a new thread starts with a write that can be refused.
local expect, version, row, grown, updated, created, member, id, last, greatest, lifetime, drops = unpack(ARGV, 1, 12)
local tenant, sealed = ARGV[13], ARGV[14]
local thread, order = KEYS[1], KEYS[2]
if sealed == '0' and redis.call('ZSCORE', KEYS[10], 's' .. tenant) then return -1 end
local old_version, size = unpack(redis.call('HMGET', thread, 'v', 'b'))
if (old_version or '') ~= expect then return 0 end
if drops == '2' then old_version, size = false, false end

position = 14
position = position + next_number()
position = position + next_number()
for _ = 1, next_number() do
  if old_version and redis.call('HEXISTS', thread, ARGV[position + 1]) == 1 then return 0 end
  position = position + 3
end
if drops == '1' then
  drop(member, id, last, tenant)
  return 1
end
if not old_version then
  redis.call('ZADD', KEYS[6], 0, id)
  drop(member, id, last, tenant)
  if KEYS[11] and redis.call('EXISTS', KEYS[11]) == 1 then
    redis.call('RENAME', KEYS[11], thread)
    redis.call('PERSIST', thread)
  end
  redis.call('ZADD', KEYS[4], created, member)
  redis.call('ZADD', KEYS[6], 0, id)
  redis.call('ZADD', KEYS[10], 0, 't' .. tenant)
end

local function remove_from_order(field)
  redis.call('ZREM', order, field, 'h' .. field:sub(2))
end

position = 14
for _ = 1, next_number() do
  local field = next_arg()
  redis.call('HDEL', thread, field)
  remove_from_order(field)
end
size = (size and tonumber(size:match('^[^:]*')) or 0) + tonumber(grown)
for _ = 1, next_number() do
  local field = next_arg()
  size = size - redis.call('HSTRLEN', thread, field)
  redis.call('HDEL', thread, field)
end

-- Each call is sent to the replicas separately, so a few calls with many values are better than many calls.
local values, members, changed = {'v', version, 'r', row, 'b', string.format('%.0f:%.0f', size, size)}, {}, {}
for pass = 1, 2 do
  for _ = 1, next_number() do
    local field = next_arg()
    members[#members + 1], members[#members + 2] = 0, next_arg()
    values[#values + 1], values[#values + 2] = field, next_arg()
    if pass == 2 then changed[#changed + 1] = field end
  end
end
for _ = 1, 2 * next_number() do values[#values + 1] = next_arg() end
for i = 1, #values, 1000 do redis.call('HSET', thread, unpack(values, i, math.min(i + 999, #values))) end
for _, field in ipairs(changed) do remove_from_order(field) end

local runs = {}
for _ = 1, next_number() do
  local run = next_arg()
  members[#members + 1], members[#members + 2] = 0, 'u' .. run
  runs[#runs + 1], runs[#runs + 2] = 0, run .. last
end
for i = 1, #members, 1000 do redis.call('ZADD', order, unpack(members, i, math.min(i + 999, #members))) end
for i = 1, #runs, 1000 do redis.call('ZADD', KEYS[8], unpack(runs, i, math.min(i + 999, #runs))) end
for _ = 1, next_number() do
  local run = next_arg()
  redis.call('ZREM', order, 'u' .. run)
  redis.call('ZREM', KEYS[8], run .. last)
end

redis.call('ZADD', KEYS[3], updated, member)
redis.call('ZADD', KEYS[5], size, member)
local known = greatest ~= '' and redis.call('HGET', KEYS[9], member)
if greatest ~= '' and (not known or is_less(known, greatest)) then
  if known then redis.call('ZREM', KEYS[7], known .. last) end
  redis.call('ZADD', KEYS[7], 0, greatest .. last)
  redis.call('HSET', KEYS[9], member, greatest)
end
if lifetime ~= '' then
  redis.call('PEXPIRE', thread, lifetime)
  redis.call('PEXPIRE', order, string.format('%.0f', 2 * lifetime + 86400000))
end
return 1
