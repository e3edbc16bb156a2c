-- A worker's sign of life, and which partitions are its own. A lease holds as long as its worker gives signs of life.
-- Everybody gets a fair share: who has more is told to give up, who has less takes what is free.
-- KEYS: the members (a sorted set), the leases (a hash).
-- ARGV: us, after how many ms of silence a worker is gone, the count of partitions, then the partitions that we let go.
local me, silent_ms, partitions = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
for at = 4, #ARGV do
  if redis.call('HGET', KEYS[2], ARGV[at]) == me then
    redis.call('HDEL', KEYS[2], ARGV[at])
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now_ms - silent_ms))
-- A clock that was set back: signs from its future would never grow old.
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('%.0f', now_ms + silent_ms), '+inf')
redis.call('ZADD', KEYS[1], string.format('%.0f', now_ms), me)
local members, counts = redis.call('ZRANGE', KEYS[1], 0, -1), {}
for _, member in ipairs(members) do
  counts[member] = 0
end
local mine, free = {}, {}
for partition = 0, partitions - 1 do
  local owner = redis.call('HGET', KEYS[2], partition)
  if owner and counts[owner] then
    counts[owner] = counts[owner] + 1
    if owner == me then
      mine[#mine + 1] = partition
    end
  else
    free[#free + 1] = partition
  end
end
table.sort(members, function(one, other)
  if counts[one] ~= counts[other] then
    return counts[one] > counts[other]
  end
  return one < other
end)
local share = math.floor(partitions / #members)
for at = 1, partitions % #members do
  if members[at] == me then
    share = share + 1
  end
end
local surplus = {}
for at = share + 1, #mine do
  surplus[#surplus + 1] = mine[at]
end
for _, partition in ipairs(free) do
  if #mine < share then
    redis.call('HSET', KEYS[2], partition, me)
    mine[#mine + 1] = partition
  end
end
return {mine, surplus}
