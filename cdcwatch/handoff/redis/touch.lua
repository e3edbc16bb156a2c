-- Writes what is there already, so that WAITAOF behind it on the same connection waits for all that was written before;
-- unless the server has lost some of that meanwhile.
-- KEYS: the owner hash, the progress hash. ARGV: slot, our token, the progress that we know of.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return {'fenced'}
end
if (redis.call('HGET', KEYS[2], ARGV[1]) or '') ~= ARGV[3] or redis.call('HEXISTS', KEYS[2], '#moving ' .. ARGV[1]) == 1 then
  return {'changed'}
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return {'done'}
