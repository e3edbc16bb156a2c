-- Takes the slot: whoever had it before can write no more. What the sink holds of it.
-- What was put aside and not decided upon is of nobody.
-- KEYS: the owner hash, the progress hash, the staging stream, then the streams.
-- ARGV: slot, the new token, the count of partitions.
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSETNX', KEYS[2], '#partitions', ARGV[3])
local moving = redis.call('HGET', KEYS[2], '#moving ' .. ARGV[1])
if not moving then
  redis.call('UNLINK', KEYS[3])
end
local kinds = {}
for at = 4, #KEYS do
  kinds[at - 3] = redis.call('TYPE', KEYS[at]).ok
end
return {
  redis.call('HGET', KEYS[2], ARGV[1]),
  moving,
  redis.call('HGET', KEYS[2], '#partitions'),
  kinds,
}
