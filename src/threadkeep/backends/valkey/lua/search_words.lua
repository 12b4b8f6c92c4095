-- Returns those of some memories of a partition that have at least one of some words, unless they have expired.
-- KEYS: memories, namespaces, words. ARGV: now, low and high of the members in namespaces, their number, then words.
-- The reply starts with the last member that was read, or '' if there are no more. Each memory is: its member in
-- namespaces, how many of the words it has, how often they occur in it, updated, key. A memory whose words cannot be
-- read has -1 of them.
local memories, namespaces, words = KEYS[1], KEYS[2], KEYS[3]
local now, low, high, limit = next_number(), next_arg(), next_arg(), next_number()
-- A mark is 238 and two bytes with 6 bits of the count each. No word contains a 238 or a space.
local wanted = {}
while position < #ARGV do wanted[#wanted + 1] = ' ' .. next_arg() .. '\238' end
local members = redis.call('ZRANGEBYLEX', namespaces, low, high, 'LIMIT', 0, limit)
local numbers = {}
for i, member in ipairs(members) do numbers[i] = member:sub(-DIGITS) end
local found = {#members == limit and members[limit] or ''}
for i, entry in ipairs(fetch(words, numbers)) do
  local distinct, times = 0, 0
  if entry then
    local length, key_start = entry:match('^(%d+):()')
    local start = length and key_start + tonumber(length)
    for _, word in ipairs(start and wanted or {}) do
      local at = entry:find(word, start, true)
      if at then
        local high_bits, low_bits = entry:byte(at + #word, at + #word + 1)
        distinct, times = distinct + 1, times + ((high_bits or 0) - 128) * 64 + (low_bits or 0) - 128
      end
    end
    if not start then distinct = -1 end
    if distinct ~= 0 then
      local memory = read_memory(memories, numbers[i])
      if memory and is_unexpired(memory, now) then
        local key = start and entry:sub(key_start, start - 1) or ''
        for _, value in ipairs({members[i], distinct, times, memory[2], key}) do
          found[#found + 1] = value
        end
      end
    end
  end
end
return found
