-- Moves some of the staged events to their streams, in order. 'more': there are others; 'done': there were none left.
-- KEYS: the owner hash, the progress hash, the staging stream, then the streams. ARGV: slot, our token, how many.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return {'fenced'}
end
for at = 4, #KEYS do
  local kind = redis.call('TYPE', KEYS[at]).ok
  if kind ~= 'stream' then
    return {kind, KEYS[at]}
  end
end
-- A stream that was moved whole is empty and still there. One that somebody deleted leaves events untold: without its
-- record the slot's progress is nobody's, and the table is read again.
if redis.call('TYPE', KEYS[3]).ok == 'none' then
  redis.call('HDEL', KEYS[2], ARGV[1], '#moving ' .. ARGV[1])
  return {'changed'}
end
redis.call('XDEL', KEYS[3], '0-1') -- a right that was taken away shows before the first event
local staged = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', ARGV[3])
if #staged == 0 then
  redis.call('UNLINK', KEYS[3])
  redis.call('HDEL', KEYS[2], '#moving ' .. ARGV[1])
  return {'done'}
end
for _, one in ipairs(staged) do
  local of = one[2]
  local number, id, kind, key, value = tonumber(of[2]), of[4], of[6], of[8], of[10]
  if number > 0 then
    redis.call('XADD', KEYS[number + 3], '*', 'id', id, 'type', kind, 'key', key,
      'value', value, 'content-type', 'application/cloudevents+json; charset=UTF-8')
  elseif kind == '' then
    redis.call('XADD', KEYS[3 - number], '*', 'id', id, 'value', value)
  else
    redis.call('XADD', KEYS[3 - number], '*', 'id', id, 'type', kind,
      'value', value, 'content-type', 'application/cloudevents+json; charset=UTF-8')
  end
  redis.call('XDEL', KEYS[3], one[1])
end
return {'more'}
