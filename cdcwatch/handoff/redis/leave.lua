-- A worker goes: what was its own is free. KEYS: the members, the leases. ARGV: us, the count of partitions.
for partition = 0, tonumber(ARGV[2]) - 1 do
  if redis.call('HGET', KEYS[2], partition) == ARGV[1] then
    redis.call('HDEL', KEYS[2], partition)
  end
end
return redis.call('ZREM', KEYS[1], ARGV[1])
