-- Functions that all scripts share; this file is put before each of them.
-- KEYS of a script that changes a thread: thread, order, updated, created, bytes, ids, greatest, runs, greatest ids,
-- tenants.
-- A thread is a hash: v (epoch:rev), r (its row), b (bytes, twice), i… (items), c… and w… (rows of checkpoints and writes).
-- Its order is a sorted set of members: c… and h… (visible and hidden checkpoints), w… (writes), u… (runs).
local position = 0

local function next_arg()
  position = position + 1
  return ARGV[position]
end

local function next_number()
  return tonumber(next_arg())
end

-- Compares bytes one by one, since Lua's own comparison follows the server's locale.
local function is_less(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = one:byte(i), other:byte(i)
    if a ~= b then return a < b end
  end
  return #one < #other
end

-- Returns the plain numbers at the start of a row, and the position where they end.
local function leading_numbers(row)
  local stop = row:find('\n', 1, true)
  local found = {}
  for number in row:sub(1, stop - 1):gmatch('%d+') do found[#found + 1] = tonumber(number) end
  return found, stop
end

local function fetch(hash, fields)
  local found = {}
  for i = 1, #fields, 1000 do
    local page = redis.call('HMGET', hash, unpack(fields, i, math.min(i + 999, #fields)))
    for n = 1, #page do found[i + n - 1] = page[n] end
  end
  return found
end

-- Deletes a thread and its entries in the partition's sets, which are made of `member`, `id` and `last`. If it was the
-- last one of a tenant, the tenant has no threads in the partition any more.
local function drop(member, id, last, tenant)
  local greatest = redis.call('HGET', KEYS[9], member)
  for _, run in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], '[u', '(v')) do
    redis.call('ZREM', KEYS[8], run:sub(2) .. last)
  end
  for i = 3, 5 do redis.call('ZREM', KEYS[i], member) end
  redis.call('ZREM', KEYS[6], id)
  if greatest then redis.call('ZREM', KEYS[7], greatest .. last) end
  redis.call('HDEL', KEYS[9], member)
  redis.call('UNLINK', KEYS[1], KEYS[2])
  if redis.call('EXISTS', KEYS[6]) == 0 then redis.call('ZREM', KEYS[10], 't' .. tenant) end
end

-- The number of a memory has 16 hexadecimal digits.
local DIGITS = 16

-- Returns the start of a stored memory: created, updated, expires, number of vectors, ttl, and a checksum of these
-- unless the memory is one of those that are stored without checksums.
local function memory_start(pieces, is_unchecked)
  local plain = table.concat(pieces, ',', 1, 5)
  if is_unchecked then return plain .. '\n' end
  return plain .. ',' .. redis.sha1hex(plain):sub(1, 8) .. '\n'
end

-- Returns a memory as a list: created, updated, expires, number of vectors, ttl; `row` is the rest, and `intact` says
-- whether the list matches its checksum, if it has one. Returns nil if the memory does not exist.
local function read_memory(memories, number)
  local stored = redis.call('HGET', memories, number)
  if not stored then return nil end
  local stop = stored:find('\n', 1, true) or #stored + 1
  local found = {row = stored:sub(stop + 1)}
  for piece in (stored:sub(1, stop - 1) .. ','):gmatch('([^,]*),') do found[#found + 1] = piece end
  found.intact = #found == 5 or (#found == 6 and memory_start(found) == stored:sub(1, stop))
  return found
end

local function is_unexpired(one, now)
  return one.intact and (one[3] == '' or tonumber(one[3]) > now)
end
