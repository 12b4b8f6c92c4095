-- How many bytes some items of a thread hold. ARGV: fields.
local size = 0
for _, field in ipairs(ARGV) do size = size + redis.call('HSTRLEN', KEYS[1], field) end
return size
