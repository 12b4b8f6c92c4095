-- Starts the ttl of memories again; those without a ttl are left alone.
-- KEYS: memories, expiry. ARGV: now, then numbers.
local now = tonumber(next_arg())
while position < #ARGV do
  local number = next_arg()
  local memory = read_memory(KEYS[1], number)
  if memory and memory[5] ~= '' and is_unexpired(memory, now) then
    local expires = string.format('%.0f', now + math.floor(tonumber(memory[5]) * 60000000))
    memory[3] = expires
    redis.call('HSET', KEYS[1], number, memory_start(memory, #memory == 5) .. memory.row)
    redis.call('ZADD', KEYS[2], expires, number)
  end
end
return 1
