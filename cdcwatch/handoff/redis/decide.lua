-- From here on all staged events will be in their streams: whoever opens the sink next carries on with moving them.
-- KEYS: the owner hash, the progress hash, the staging stream, then the streams.
-- ARGV: slot, our token, the progress that we know of, the new one, the streams' names as JSON, how many are staged.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return {'fenced'}
end
if (redis.call('HGET', KEYS[2], ARGV[1]) or '') ~= ARGV[3] then
  return {'changed'}
end
if redis.call('XLEN', KEYS[3]) ~= tonumber(ARGV[6]) then
  return {'changed'}
end
for at = 4, #KEYS do
  local kind = redis.call('TYPE', KEYS[at]).ok
  if kind ~= 'stream' then
    return {kind, KEYS[at]}
  end
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
if ARGV[6] ~= '0' then
  redis.call('HSET', KEYS[2], '#moving ' .. ARGV[1], ARGV[5])
end
return {'done'}
