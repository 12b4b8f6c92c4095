-- What all scripts share. KEYS of one that changes a thread: thread, order, updated, created, bytes, ids, greatest, runs,
-- and a hash of the greatest checkpoint id of each.
-- A thread is a hash: v (epoch and rev), r (its row), b (bytes), i… (items), c… and w… (rows of checkpoints and writes).
-- Its order is a sorted set of places: c… and h… (visible and hidden checkpoints), w… (writes), u… (runs).
local at = 0

local function next_one()
  at = at + 1
  return ARGV[at]
end

local function next_number()
  return tonumber(next_one())
end

-- Bytes are compared one by one: Lua's own comparison follows the server's locale.
local function less(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = one:byte(i), other:byte(i)
    if a ~= b then return a < b end
  end
  return #one < #other
end

-- The numbers in clear at the beginning of a row, and where they end.
local function numbers(row)
  local stop = row:find('\n', 1, true)
  local found = {}
  for number in row:sub(1, stop - 1):gmatch('%d+') do found[#found + 1] = tonumber(number) end
  return found, stop
end

local function fetch(hash, fields)
  local found = {}
  for i = 1, #fields, 1000 do
    local some = redis.call('HMGET', hash, unpack(fields, i, math.min(i + 999, #fields)))
    for n = 1, #some do found[i + n - 1] = some[n] end
  end
  return found
end

-- A thread and all that tells of it. `member`, `id` and `last` are what it is called in the partition's sets.
local function drop(member, id, last)
  local greatest = redis.call('HGET', KEYS[9], member)
  for _, run in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], '[u', '(v')) do
    redis.call('ZREM', KEYS[8], run:sub(2) .. last)
  end
  for i = 3, 5 do redis.call('ZREM', KEYS[i], member) end
  redis.call('ZREM', KEYS[6], id)
  if greatest then redis.call('ZREM', KEYS[7], greatest .. last) end
  redis.call('HDEL', KEYS[9], member)
  redis.call('UNLINK', KEYS[1], KEYS[2])
end

-- A memory: created, updated, expires, how many vectors, ttl, row. Its number is 16 letters.
local NUMBER = 16

local function memory(memories, number)
  local stored = redis.call('HGET', memories, number)
  if not stored then return nil end
  local stop = stored:find('\n', 1, true)
  local told = {}
  for piece in (stored:sub(1, stop - 1) .. ','):gmatch('([^,]*),') do told[#told + 1] = piece end
  told[6] = stored:sub(stop + 1)
  return told
end

local function lives(one, now)
  return one[3] == '' or tonumber(one[3]) > now
end
