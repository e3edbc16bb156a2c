-- One batch and its progress, all or nothing.
-- KEYS: the owner hash, the progress hash, then the streams that the events go to.
-- ARGV: slot, our token, the progress that we know of ('': none), the new one, the age in ms at which events are
--       trimmed (0: never), the events as msgpack: a flat array of stream number (negative: no key), id, type, key,
--       value; how many of the streams are none of dead letters.
-- Nothing is written before everything was looked at: Redis takes nothing back.
local slot, token, known, progress, max_age_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
if redis.call('HGET', KEYS[1], slot) ~= token then
  return {'fenced'}
end
if (redis.call('HGET', KEYS[2], slot) or '') ~= known then
  return {'changed'}
end
for at = 3, #KEYS do
  local kind = redis.call('TYPE', KEYS[at]).ok
  if kind ~= 'stream' then
    return {kind, KEYS[at]}
  end
end
-- What could be refused for a right that was taken away comes before the first event.
redis.call('HSET', KEYS[1], slot, token)
local live = tonumber(ARGV[7])
if max_age_ms > 0 and live > 0 then
  local now = redis.call('TIME')
  local oldest = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000) - max_age_ms)
  for at = 3, live + 2 do
    redis.call('XTRIM', KEYS[at], 'MINID', '~', oldest)
  end
end
local events = cmsgpack.unpack(ARGV[6])
for at = 1, #events, 5 do
  local number = events[at]
  if number > 0 then
    redis.call('XADD', KEYS[number + 2], '*', 'id', events[at + 1], 'type', events[at + 2], 'key', events[at + 3],
      'value', events[at + 4], 'content-type', 'application/cloudevents+json; charset=UTF-8')
  elseif events[at + 2] == '' then
    redis.call('XADD', KEYS[2 - number], '*', 'id', events[at + 1], 'value', events[at + 4])
  else
    redis.call('XADD', KEYS[2 - number], '*', 'id', events[at + 1], 'type', events[at + 2],
      'value', events[at + 4], 'content-type', 'application/cloudevents+json; charset=UTF-8')
  end
end
redis.call('HSET', KEYS[2], slot, progress)
return {'done'}
