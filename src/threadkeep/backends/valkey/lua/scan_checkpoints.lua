-- Returns the visible checkpoints of a thread, greatest id first in each namespace: rows and their labels. Also returns
-- the thread's row.
-- ARGV: the prefix of one namespace's members (empty: all namespaces), the upper bound of ids (empty: none), limit.
local thread, order = KEYS[1], KEYS[2]
local prefix, below, limit = ARGV[1], ARGV[2], ARGV[3]

local version, row = unpack(redis.call('HMGET', thread, 'v', 'r'))
if not version then return {{}, {}, ''} end
local fields = {}
local function add(start)
  local high = below == '' and start .. '\255' or start .. below
  for _, field in ipairs(redis.call('ZREVRANGEBYLEX', order, '(' .. high, '[' .. start, 'LIMIT', 0, limit)) do
    fields[#fields + 1] = field
  end
end

if prefix ~= '' then
  add(prefix)
else
  local low = '[c'
  while true do
    local first = redis.call('ZRANGEBYLEX', order, low, '(d', 'LIMIT', 0, 1)[1]
    if not first then break end
    local _, stop = first:find('\0\1', 1, true)
    add(first:sub(1, stop))
    low = '(' .. first:sub(1, stop) .. '\255'
  end
end

local rows = fetch(thread, fields)
local labels = {}
for i, each in ipairs(rows) do labels[i] = 'i2:' .. leading_numbers(each)[1] end
return {rows, fetch(thread, labels), row or ''}
