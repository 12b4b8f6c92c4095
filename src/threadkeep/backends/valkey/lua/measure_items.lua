-- Returns the version, row and bytes of a thread, and of some items the length and the first bytes.
-- ARGV: how many first bytes, fields. Items that do not exist are left out.
local version, row, bytes = unpack(redis.call('HMGET', KEYS[1], 'v', 'r', 'b'))
if not version then return {} end
local found = {}
for i = 2, #ARGV do
  local stored = redis.call('HGET', KEYS[1], ARGV[i])
  if stored then found[#found + 1] = {ARGV[i], #stored, stored:sub(1, tonumber(ARGV[1]))} end
end
return {version, row, bytes, found}
