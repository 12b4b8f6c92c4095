-- Returns the version of a thread and some of its items. ARGV: fields.
return {redis.call('HGET', KEYS[1], 'v'), fetch(KEYS[1], ARGV)}
