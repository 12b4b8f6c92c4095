-- Returns the namespaces that have an unexpired memory, in order. For one whose memory is damaged or in another
-- namespace, it returns the number of that memory.
-- KEYS: memories, namespaces. ARGV: now, low, high, limit.
local memories, namespaces = KEYS[1], KEYS[2]
local now, low, high, limit = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local found = {}
while #found < limit do
  local first = redis.call('ZRANGEBYLEX', namespaces, low, high, 'LIMIT', 0, 1)[1]
  if not first then break end
  local namespace = first:sub(1, -DIGITS - 3)
  low = '(' .. namespace .. '\0\0\255'
  for _, member in ipairs(redis.call('ZRANGEBYLEX', namespaces, '[' .. first, low)) do
    local memory = read_memory(memories, member:sub(-DIGITS))
    if memory and (is_unexpired(memory, now) or not memory.intact) then
      local at = memory.row:find(namespace, 1, true)  -- after the headers of a msgpack array and of its first element
      found[#found + 1] = memory.intact and at and at <= 7 and namespace or member:sub(-DIGITS)
      break
    end
  end
end
return found
