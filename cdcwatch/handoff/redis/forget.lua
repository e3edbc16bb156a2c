-- Takes a slot's progress away, and the slot from whoever writes for it. Whether there was any.
-- KEYS: the owner hash, the progress hash, the staging stream. ARGV: slot, a token that nobody has.
local had = redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[2], '#moving ' .. ARGV[1])
redis.call('UNLINK', KEYS[3])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return had
