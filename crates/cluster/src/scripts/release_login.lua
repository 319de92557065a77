-- Releases the lock of a sign-in, unless it has expired and is held by another process.
--
-- KEYS: the lock. ARGV: the token of the lock.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 1
