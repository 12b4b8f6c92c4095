-- Adds items to a hash that will become a thread. Until then no reader sees it. ARGV: lifetime, then fields and values.
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
