-- Tells the others that this replica lives, and returns what they told.
--
-- KEYS: the hash of the replicas, and the stream of terminated sessions. ARGV: the id of this replica, what it tells,
-- the milliseconds after which a silent replica is forgotten, the last entry of the stream that it knows, and how many
-- entries it takes at once. Returns the replicas (id, milliseconds since it was heard, what it told) and the entries.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local patience = tonumber(ARGV[3])
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f ', now) .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local all, alive = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  local at, told = string.match(all[i + 1], '^(%d+) (.*)$')
  local silent = now - (tonumber(at) or 0)
  if math.abs(silent) > patience then
    redis.call('HDEL', KEYS[1], all[i])
  else
    alive[#alive + 1] = {all[i], math.max(silent, 0), told}
  end
end
local news = redis.call('XREAD', 'COUNT', ARGV[5], 'STREAMS', KEYS[2], ARGV[4])
return {alive, news and news[1] and news[1][2] or {}}
