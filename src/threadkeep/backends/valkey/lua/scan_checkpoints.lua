-- Returns the checkpoints of a thread, greatest id first in each namespace: fields, rows and labels. Also returns the
-- thread's row.
-- ARGV: the prefix of one namespace's members (empty: all namespaces), the upper bound of ids (empty: none), limit,
-- hidden (1: hidden checkpoints too).
local thread, order = KEYS[1], KEYS[2]
local prefix, below, limit, hidden = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local version, row = unpack(redis.call('HMGET', thread, 'v', 'r'))
if not version then return {{}, {}, {}, ''} end
local fields = {}
local function add(start)
  local high = below == '' and start .. '\255' or start .. below
  for _, field in ipairs(redis.call('ZREVRANGEBYLEX', order, '(' .. high, '[' .. start, 'LIMIT', 0, limit)) do
    fields[#fields + 1] = 'c' .. field:sub(2)
  end
end

local function add_all(kind, after)
  local low = '[' .. kind
  while true do
    local first = redis.call('ZRANGEBYLEX', order, low, '(' .. after, 'LIMIT', 0, 1)[1]
    if not first then break end
    local _, stop = first:find('\0\1', 1, true)
    add(first:sub(1, stop))
    low = '(' .. first:sub(1, stop) .. '\255'
  end
end

if prefix ~= '' then
  add(prefix)
  if hidden == '1' then add('h' .. prefix:sub(2)) end
else
  add_all('c', 'd')
  if hidden == '1' then add_all('h', 'i') end
end

local rows = fetch(thread, fields)
local labels = {}
for i = 1, #fields do  -- a damaged row may lack its numbers, or be gone
  rows[i] = rows[i] or ''
  labels[i] = 'i2:' .. (rows[i]:match('^%d+') or '')
end
return {fields, rows, fetch(thread, labels), row or ''}
