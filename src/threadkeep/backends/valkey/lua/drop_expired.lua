-- Deletes the entries of a thread in the partition's sets if the thread has expired. ARGV: member, id, last, tenant.
if redis.call('EXISTS', KEYS[1]) == 0 then drop(ARGV[1], ARGV[2], ARGV[3], ARGV[4]) end
return 1
