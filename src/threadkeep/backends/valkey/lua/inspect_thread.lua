-- Returns all of a thread as it is stored, except its state, and its entries in the partition's sets.
-- ARGV: member, id, last.
local thread, order = KEYS[1], KEYS[2]
local member, id, last = ARGV[1], ARGV[2], ARGV[3]
local version, row, bytes = unpack(redis.call('HMGET', thread, 'v', 'r', 'b'))
local rows, shared, stored = {}, {}, {}
for _, field in ipairs(redis.call('HKEYS', thread)) do
  local kind = field:sub(1, 1)
  if kind == 'i' then
    stored[#stored + 1], stored[#stored + 2] = field, redis.call('HSTRLEN', thread, field)
    if field:match('^i[012]:') then shared[#shared + 1] = field end
  elseif kind == 'c' or kind == 'w' then
    rows[#rows + 1] = field
  end
end
local members = redis.call('ZRANGE', order, 0, -1)
local missing_runs = {}
for _, each in ipairs(members) do
  if each:sub(1, 1) == 'u' and not redis.call('ZSCORE', KEYS[8], each:sub(2) .. last) then
    missing_runs[#missing_runs + 1] = each
  end
end
local greatest = redis.call('HGET', KEYS[9], member)
local entries = {
  redis.call('ZSCORE', KEYS[3], member) or '', redis.call('ZSCORE', KEYS[4], member) or '',
  redis.call('ZSCORE', KEYS[5], member) or '', redis.call('ZSCORE', KEYS[6], id) or '', greatest or '',
  greatest and redis.call('ZSCORE', KEYS[7], greatest .. last) or ''
}
return {
  redis.call('EXISTS', thread), version or '', row or '', bytes or '', rows, fetch(thread, rows), shared,
  fetch(thread, shared), stored, members, missing_runs, entries
}
