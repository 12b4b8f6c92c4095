-- Returns checkpoints of a thread, with its version, row and bytes: each checkpoint's row and the rows of its writes.
-- Also returns the items that the client does not have: those that the rows need, and those of state up to a limit.
-- ARGV: the epoch of what the client has, how many names it has, the lanes that it has (a count; lane, from, to), the
-- limit of items; then for each checkpoint three values:
--   l, the prefix of its namespace, whether with items    the latest visible checkpoint; returned with its field
--   i, its field, whether with items                      a checkpoint by id
--   a, its field, limit                                   a checkpoint and its ancestors
local thread, order = KEYS[1], KEYS[2]
local version, row, bytes = unpack(redis.call('HMGET', thread, 'v', 'r', 'b'))
if not version then return {} end

local epoch, names = next_arg(), next_number()
local known = version:match('^[^:]*') == epoch
local spans = {}
for _ = 1, next_number() do
  local lane = next_arg()
  spans[lane] = {next_number(), next_number()}
end
local max_items = next_number()

local fields = {}
local wanted = {}
local function want(lane, n)
  local span, field = spans[tostring(lane)], 'i' .. lane .. ':' .. n
  if wanted[field] or (known and span and span[1] <= n and n < span[2]) then return end
  wanted[field] = true
  fields[#fields + 1] = field
end

-- A thread has few names, and a row refers to one shape and to few range lists. A damaged row may name billions.
local MAX_SHARED = 100000
for n = known and names or 0, math.min(leading_numbers(row)[1], MAX_SHARED) - 1 do want(0, n) end

local found, ranges = {}, {}
local function follow(refs, first, items)
  for i = first, #refs, 3 do
    local lane, start, length = refs[i], refs[i + 1], refs[i + 2]
    if lane > 2 then
      if items then ranges[#ranges + 1] = {lane, start, length} end
    elseif length <= MAX_SHARED then
      for n = start, start + length - 1 do want(lane, n) end
    end
  end
end

local function load_checkpoint(field, items)
  local checkpoint = redis.call('HGET', thread, field)
  local prefix = 'w' .. field:sub(2) .. '\0\1'
  local writes = fetch(thread, redis.call('ZRANGEBYLEX', order, '[' .. prefix, '(' .. prefix .. '\255'))
  if checkpoint then
    local refs = leading_numbers(checkpoint)
    want(2, refs[1])
    follow(refs, 2, items)
  end
  for _, write in ipairs(writes) do follow(leading_numbers(write), 1, items) end
  found[#found + 1] = {checkpoint, writes}
  return checkpoint
end

local function parent_of(checkpoint)
  local _, stop = leading_numbers(checkpoint)
  local colon = checkpoint:find(':', stop, true)
  local length = tonumber(checkpoint:sub(stop + 1, colon - 1))
  return length and checkpoint:sub(colon + 1, colon + length)
end

local function load_ancestors(field, limit)
  local _, stop = field:find('\0\1', 1, true)
  local seen = {}
  while field and not seen[field] and #found < limit and redis.call('HEXISTS', thread, field) == 1 do
    seen[field] = true
    local parent = parent_of(load_checkpoint(field, false))
    field = parent and field:sub(1, stop) .. parent
  end
end

while position < #ARGV do
  local kind, what, more = next_arg(), next_arg(), next_arg()
  if kind == 'a' then
    load_ancestors(what, tonumber(more))
  else
    if kind == 'l' then
      what = redis.call('ZREVRANGEBYLEX', order, '(' .. what .. '\255', '[' .. what, 'LIMIT', 0, 1)[1]
    end
    if what then load_checkpoint(what, more == '1') else found[#found + 1] = {false, {}} end
    if kind == 'l' then found[#found][3] = what end
  end
end

local count = 0
for _, range in ipairs(ranges) do count = count + range[3] end
if count <= max_items then
  for _, range in ipairs(ranges) do
    for n = range[2], range[2] + range[3] - 1 do want(range[1], n) end
  end
end
return {version, row, bytes, found, fields, fetch(thread, fields)}
