-- Keeps the state of a rollout, unless a newer one is kept. There are few, and users of the store have HGETALL already.
--
-- KEYS: the hash of the states. ARGV: the name of the rollout, the time of the change in seconds, and the sealed state.
local all, changed = redis.call('HGETALL', KEYS[1]), -1
for i = 1, #all, 2 do
  if all[i] == ARGV[1] then
    changed = tonumber(string.match(all[i + 1], '^(%d+) ')) or -1
  end
end
if tonumber(ARGV[2]) >= changed then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
end
