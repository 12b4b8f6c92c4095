-- Adds, replaces and deletes memories of one partition, and returns the number deleted; or -1, and changes nothing, if the
-- tenant is sealed and the caller does not know; or -2, and changes nothing, if something is not as expected.
-- KEYS: memories, expiry, namespaces, times, vectors, changes, words, partitions; and the tenants of the slot if the caller
-- does not know of any encryption. Then the last of ARGV is the tenant.
-- ARGV: now, the partition's name, 1 to delete only expired memories, or 2 if one memory is expected: its number, updated
-- and expires, or its number and two empty texts if it must not exist; or 3 if several are: how many, and the number of each
-- and when it was updated, or an empty text if there must be none, or only one that has expired; then two lists, each after its length:
-- puts (number, start of its member in namespaces, created, updated, expires, ttl, row, words, and its vectors after
-- their count) and deletes (number, start of its member in namespaces).
local memories, expiry, namespaces, times, vectors, changes, words, partitions = unpack(KEYS)
if KEYS[9] and redis.call('ZSCORE', KEYS[9], 's' .. ARGV[#ARGV]) then return -1 end
local now, name, mode = tonumber(next_arg()), next_arg(), next_arg()
local only_expired = mode == '1'
if mode == '2' then
  local old, updated, expires = read_memory(memories, next_arg()), next_arg(), next_arg()
  if (old and old[2] or '') ~= updated or (old and old[3] or '') ~= expires then return -2 end
end
if mode == '3' then
  for _ = 1, next_number() do
    local old, updated = read_memory(memories, next_arg()), next_arg()
    if (old and (is_unexpired(old, now) or not old.intact) and old[2] or '') ~= updated then return -2 end
  end
end
local stored, lost, deleted = false, false, 0

local function delete_vector(field)
  redis.call('HDEL', vectors, field)
  redis.call('ZREM', changes, field)
  lost = true
end

-- Deletes the vectors of an old memory from a field on. If the memory is damaged, their number is not known.
local function delete_vectors(number, from, old)
  if old.intact then
    for n = from, tonumber(old[4]) - 1 do delete_vector(number .. ':' .. n) end
    return
  end
  for _, field in ipairs(redis.call('HKEYS', vectors)) do
    if field:sub(1, DIGITS + 1) == number .. ':' and tonumber(field:sub(DIGITS + 2)) >= from then delete_vector(field) end
  end
end

local stored_fields = {}
for _ = 1, next_number() do
  local number, namespace, created, updated = next_arg(), next_arg(), next_arg(), next_arg()
  local expires, ttl, row, own_words = next_arg(), next_arg(), next_arg(), next_arg()
  local old = read_memory(memories, number)
  if old and is_unexpired(old, now) then created = old[1] end
  local count = next_number()
  redis.call('HSET', memories, number, memory_start({created, updated, expires, count, ttl}) .. row)
  redis.call('ZADD', namespaces, 0, namespace .. number)
  redis.call('ZADD', times, updated, number)
  if expires ~= '' then redis.call('ZADD', expiry, expires, number) else redis.call('ZREM', expiry, number) end
  if own_words ~= '' then redis.call('HSET', words, number, own_words) else redis.call('HDEL', words, number) end
  if old then delete_vectors(number, count, old) end
  for n = 0, count - 1 do
    redis.call('HSET', vectors, number .. ':' .. n, next_arg())
    stored_fields[#stored_fields + 1] = number .. ':' .. n
    stored = true
  end
end
for _ = 1, next_number() do
  local number, namespace = next_arg(), next_arg()
  local old = read_memory(memories, number)
  if old and not (only_expired and (is_unexpired(old, now) or not old.intact)) then
    delete_vectors(number, 0, old)
    redis.call('HDEL', memories, number)
    redis.call('HDEL', words, number)
    redis.call('ZREM', namespaces, namespace .. number)
    redis.call('ZREM', times, number)
    redis.call('ZREM', expiry, number)
    deleted = deleted + 1
  end
end
-- A new partition counts from the time on: it is not taken for an earlier one that was deleted.
if (stored or lost) and redis.call('HSETNX', vectors, 'seq', ARGV[1]) == 1 then
  redis.call('HSETNX', vectors, 'lost', ARGV[1])
end
if stored then
  local seq = redis.call('HINCRBY', vectors, 'seq', 1)
  for _, field in ipairs(stored_fields) do redis.call('ZADD', changes, seq, field) end
end
if lost then redis.call('HINCRBY', vectors, 'lost', 1) end
if redis.call('EXISTS', memories) == 1 then
  redis.call('ZADD', partitions, 0, name)
elseif not lost and not stored and redis.call('HLEN', vectors) == 0 then
  redis.call('ZREM', partitions, name)
end
return deleted
