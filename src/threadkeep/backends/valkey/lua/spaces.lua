-- Namespaces that have a memory which lives, in order. KEYS: memories, spaces. ARGV: now, from, to, how many at most.
local memories, spaces = KEYS[1], KEYS[2]
local now, low, high, limit = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local found = {}
while #found < limit do
  local first = redis.call('ZRANGEBYLEX', spaces, low, high, 'LIMIT', 0, 1)[1]
  if not first then break end
  local space = first:sub(1, -NUMBER - 3)
  low = '(' .. space .. '\0\0\255'
  for _, member in ipairs(redis.call('ZRANGEBYLEX', spaces, '[' .. first, low)) do
    local one = memory(memories, member:sub(-NUMBER))
    if one and lives(one, now) then
      found[#found + 1] = space
      break
    end
  end
end
return found
