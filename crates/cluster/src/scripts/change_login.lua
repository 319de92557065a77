-- Writes or removes a sign-in, if its lock is still held by the process that asks, and tells the others.
--
-- KEYS: the lock, and the sign-in. ARGV: the token of the lock, the channel, the id of the upstream; and, unless the
-- sign-in is removed, its sealed text and the milliseconds for which it is kept. Returns whether the lock was held.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
if ARGV[4] then
  redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[5])
else
  redis.call('DEL', KEYS[2])
end
redis.call('PUBLISH', ARGV[2], ARGV[3])
return 1
