-- Returns the time of the server that has the slot of a thread: seconds and microseconds. KEYS: a key of the thread.
return redis.call('TIME')
