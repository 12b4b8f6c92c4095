-- Returns every row of a thread, the items of the engine's lanes, and the fields of all its items.
local thread, order = KEYS[1], KEYS[2]
local version, row, bytes = unpack(redis.call('HMGET', thread, 'v', 'r', 'b'))
if not version then return {} end
local shared, stored = {}, {}
for _, field in ipairs(redis.call('HKEYS', thread)) do
  if field:sub(1, 1) == 'i' then
    stored[#stored + 1] = field
    local lane = field:match('^i(%d+):')
    if lane == '0' or lane == '1' or lane == '2' then shared[#shared + 1] = field end
  end
end
local checkpoints, writes = {}, {}
for _, member in ipairs(redis.call('ZRANGE', order, 0, -1)) do
  local kind = member:sub(1, 1)
  if kind == 'w' then
    writes[#writes + 1] = member
  elseif kind ~= 'u' then
    checkpoints[#checkpoints + 1] = 'c' .. member:sub(2)
  end
end
return {version, row, bytes, fetch(thread, checkpoints), fetch(thread, writes), shared, fetch(thread, shared), stored}
