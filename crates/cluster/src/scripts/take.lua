-- Takes cells from several buckets in one step, or from none (GCRA, ITU-T I.371, virtual scheduling).
--
-- KEYS: the buckets, each with its theoretical arrival time in ticks. ARGV, for each bucket in turn: its emission
-- interval in ticks, its burst, and the cells that are wanted, of which at least one is taken. Returns the cells that
-- were taken, by bucket; or, if a bucket has none, the negative index of the one that fills last, and the ticks until
-- then.
--
-- A tick is 125 ns, counted from 2026, so that all times are whole numbers that a double holds until 2061.
local time = redis.call('TIME')
local now = (tonumber(time[1]) - 1767225600) * 8000000 + tonumber(time[2]) * 8
local stored = redis.call('MGET', unpack(KEYS))
local arrivals, taken = {}, {}
local empty, wait = 0, 0
local function keep(key, arrival)
  local lives = math.ceil((arrival - now) / 8000) + 1
  redis.call('SET', key, string.format('%.0f', arrival), 'PX', string.format('%.0f', lives))
end
for i = 1, #KEYS do
  local interval, burst, wanted = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local full = now + burst * interval
  local arrival = math.max(now, tonumber(stored[i] or now) or now)
  -- A clock that was set back, as after a failover, empties no bucket for longer than it takes to fill: the bucket
  -- is empty now and fills from now on, whether or not a cell is taken.
  if arrival > full then
    arrival = full
    keep(KEYS[i], full)
  end
  local free = math.floor((full - arrival) / interval)
  if free < 1 then
    local fills = arrival + interval - full
    if fills > wait then
      empty, wait = i, fills
    end
  end
  taken[i] = math.min(wanted, free)
  arrivals[i] = arrival + taken[i] * interval
end
if empty > 0 then
  return {-empty, wait}
end
for i = 1, #KEYS do
  keep(KEYS[i], arrivals[i])
end
return taken
