-- Adds terminated sessions to their stream, which keeps the newest ones.
--
-- KEYS: the stream. ARGV: how many sessions it keeps, the milliseconds after which none of them would be valid any
-- longer, and the sessions.
for i = 3, #ARGV do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 's', ARGV[i])
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
