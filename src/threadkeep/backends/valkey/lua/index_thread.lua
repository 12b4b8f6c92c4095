-- Replaces what the search index has of a thread, and returns 1. Removes it if the thread does not exist or has another
-- epoch. Returns 0 if the tenant has no index, or -1 if the thread would be added and the tenant is sealed.
-- KEYS: the thread, and of its partition: versions, documents and words in the index, tenants.
-- ARGV: member, tenant, epoch and a colon, version, documents; then the words.
-- The documents start with a line of all their words, by which they are removed again.
local thread, versions, documents, words, tenants = unpack(KEYS)
local member, tenant, epoch, version, said = unpack(ARGV, 1, 5)
if not redis.call('ZSCORE', tenants, 'f' .. tenant) then return 0 end

local old = redis.call('HGET', documents, member)
if old then
  local gone = {}
  for word in old:match('^[^\n]*'):gmatch('[^ ]+') do gone[#gone + 1] = word .. '\0' .. member end
  for i = 1, #gone, 1000 do redis.call('ZREM', words, unpack(gone, i, math.min(i + 999, #gone))) end
end
local stored = redis.call('HGET', thread, 'v')
local is_sealed = redis.call('ZSCORE', tenants, 's' .. tenant)
if is_sealed or not stored or stored:sub(1, #epoch) ~= epoch then
  redis.call('HDEL', versions, member)
  redis.call('HDEL', documents, member)
  return is_sealed and epoch ~= '-1:' and -1 or 1
end
redis.call('HSET', versions, member, version)
redis.call('HSET', documents, member, said)
local added = {}
for i = 6, #ARGV do added[#added + 1], added[#added + 2] = 0, ARGV[i] .. '\0' .. member end
for i = 1, #added, 1000 do redis.call('ZADD', words, unpack(added, i, math.min(i + 999, #added))) end
return 1
