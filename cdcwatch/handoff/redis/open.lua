-- Takes the slot: whoever had it before can write no more. What the sink holds of it.
-- KEYS: the owner hash, the progress hash, then the streams. ARGV: slot, the new token, the count of partitions.
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSETNX', KEYS[2], '#partitions', ARGV[3])
local kinds = {}
for at = 3, #KEYS do
  kinds[at - 2] = redis.call('TYPE', KEYS[at]).ok
end
return {
  redis.call('HGET', KEYS[2], ARGV[1]),
  redis.call('HGET', KEYS[2], '#moving ' .. ARGV[1]),
  redis.call('HGET', KEYS[2], '#partitions'),
  kinds,
}
