-- Visible checkpoints of a thread by id, descending, in each namespace: rows and their labels.
-- ARGV: how a place begins in the namespace (or nothing: all of them), the bound of ids (or nothing), how many at most.
local thread, order = KEYS[1], KEYS[2]
local space, below, limit = ARGV[1], ARGV[2], ARGV[3]

if redis.call('HEXISTS', thread, 'v') == 0 then return {{}, {}} end
local places = {}
local function add(begin)
  local high = below == '' and begin .. '\255' or begin .. below
  for _, place in ipairs(redis.call('ZREVRANGEBYLEX', order, '(' .. high, '[' .. begin, 'LIMIT', 0, limit)) do
    places[#places + 1] = place
  end
end

if space ~= '' then
  add(space)
else
  local start = '[c'
  while true do
    local first = redis.call('ZRANGEBYLEX', order, start, '(d', 'LIMIT', 0, 1)[1]
    if not first then break end
    local _, stop = first:find('\0\1', 1, true)
    add(first:sub(1, stop))
    start = '(' .. first:sub(1, stop) .. '\255'
  end
end

local rows = fetch(thread, places)
local fields = {}
for i, row in ipairs(rows) do fields[i] = 'i2:' .. numbers(row)[1] end
return {rows, fetch(thread, fields)}
