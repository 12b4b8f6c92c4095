-- Some items of a thread, with its version. ARGV: fields.
return {redis.call('HGET', KEYS[1], 'v'), fetch(KEYS[1], ARGV)}
