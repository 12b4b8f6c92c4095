-- Deletes a thread and returns 1, or 2 if its tenant has a search index, which may still have the thread. Returns 0 if it
-- has a lease and may not have one, or -1 if its tenant is sealed and the caller does not know.
-- ARGV: member, id, last, tenant, leased (1: it may have a lease), sealed (1: the tenant may be sealed).
if ARGV[6] == '0' and redis.call('ZSCORE', KEYS[10], 's' .. ARGV[4]) then return -1 end
if ARGV[5] == '0' then
  local row = redis.call('HGET', KEYS[1], 'r')
  if row and row:find('^%d*,%d*,%d*,%d*,%d*,%d*,1\n') then return 0 end
end
drop(ARGV[1], ARGV[2], ARGV[3], ARGV[4])
return redis.call('ZSCORE', KEYS[10], 'f' .. ARGV[4]) and 2 or 1
