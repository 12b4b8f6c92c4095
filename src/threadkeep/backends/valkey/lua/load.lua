-- Checkpoints of a thread: its version, row and bytes; for each asked the row and the rows of its writes; and, of the
-- items that the asker has not, those that are needed to understand rows, and those of state up to a number.
-- ARGV: the epoch of what the asker has, how many names it has, the lanes that it has (number; lane, from, to), how many
-- items may be sent; for each checkpoint: l and the beginning of its place, or i and its field, and whether with items;
-- or a, the field of a checkpoint whose parents are asked for too, and how many.
local thread, order = KEYS[1], KEYS[2]
local version, row, bytes = unpack(redis.call('HMGET', thread, 'v', 'r', 'b'))
if not version then return {} end

local epoch, names = next_one(), next_number()
local known = version:match('^[^:]*') == epoch
local spans = {}
for _ = 1, next_number() do
  local lane = next_one()
  spans[lane] = {next_number(), next_number()}
end
local most = next_number()

local fields = {}
local asked = {}
local function ask(lane, n, list)
  local span, field = spans[tostring(lane)], 'i' .. lane .. ':' .. n
  if asked[field] or (known and span and span[1] <= n and n < span[2]) then return end
  asked[field] = true
  list[#list + 1] = field
end

for n = known and names or 0, numbers(row)[1] - 1 do ask(0, n, fields) end

local found, wanted = {}, {}
local function refer(refs, first, items)
  for i = first, #refs, 3 do
    local lane, start, length = refs[i], refs[i + 1], refs[i + 2]
    if lane == 1 or lane == 2 then
      for n = start, start + length - 1 do ask(lane, n, fields) end
    elseif items then
      wanted[#wanted + 1] = {lane, start, length}
    end
  end
end

local function find(field, items)
  local checkpoint = redis.call('HGET', thread, field)
  local begin = 'w' .. field:sub(2) .. '\0\1'
  local writes = fetch(thread, redis.call('ZRANGEBYLEX', order, '[' .. begin, '(' .. begin .. '\255'))
  if checkpoint then
    local said = numbers(checkpoint)
    ask(2, said[1], fields)
    refer(said, 2, items)
  end
  for _, write in ipairs(writes) do refer(numbers(write), 1, items) end
  found[#found + 1] = {checkpoint, writes}
  return checkpoint
end

local function parent_of(checkpoint)
  local _, stop = numbers(checkpoint)
  local colon = checkpoint:find(':', stop, true)
  local length = tonumber(checkpoint:sub(stop + 1, colon - 1))
  return length and checkpoint:sub(colon + 1, colon + length)
end

local function find_parents(field, most)
  local _, stop = field:find('\0\1', 1, true)
  local seen = {}
  while field and not seen[field] and #found < most and redis.call('HEXISTS', thread, field) == 1 do
    seen[field] = true
    local parent = parent_of(find(field, false))
    field = parent and field:sub(1, stop) .. parent
  end
end

while at < #ARGV do
  local how, what, more = next_one(), next_one(), next_one()
  if how == 'a' then
    find_parents(what, tonumber(more))
  else
    if how == 'l' then
      what = redis.call('ZREVRANGEBYLEX', order, '(' .. what .. '\255', '[' .. what, 'LIMIT', 0, 1)[1]
    end
    if what then find(what, more == '1') else found[#found + 1] = {false, {}} end
  end
end

local count = 0
for _, run in ipairs(wanted) do count = count + run[3] end
if count <= most then
  for _, run in ipairs(wanted) do
    for n = run[2], run[2] + run[3] - 1 do ask(run[1], n, fields) end
  end
end
return {version, row, bytes, found, fields, fetch(thread, fields)}
