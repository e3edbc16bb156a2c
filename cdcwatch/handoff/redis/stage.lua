-- Puts events aside, where nobody looks.
-- KEYS: the owner hash, the staging stream.
-- ARGV: slot, our token, events as of publish.lua, how many are there already; 0 of an attempt that was broken off, too.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return {'fenced'}
end
if ARGV[4] == '0' then
  redis.call('UNLINK', KEYS[2])
end
local events = cmsgpack.unpack(ARGV[3])
for at = 1, #events, 5 do
  redis.call('XADD', KEYS[2], '*', 'n', events[at], 'i', events[at + 1], 't', events[at + 2],
    'k', events[at + 3] or '', 'v', events[at + 4])
end
return {'done'}
