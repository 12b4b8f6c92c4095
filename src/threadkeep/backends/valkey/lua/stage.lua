-- Put items into a thread that is being made, which nobody sees yet. ARGV: kept for, then fields and values.
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
