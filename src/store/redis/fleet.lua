-- A gateway reports that it is there, and learns how many others are. ARGV: its name, the name of one that leaves (one of both is
-- empty), for how long a gateway is remembered, in milliseconds, and since when it must have reported to count as present (0: in the
-- last second). With a fifth argument, what the gateway holds in leases, the list of all gateways is wanted, too.
-- Returns the time, whether this gateway was not listed, how many are listed and how many are present; with the list also which keys
-- were reset lately and when, and for each gateway its name, its silence in milliseconds and what it holds.
-- The first write is one that takes memory: a server that has none to give says so, and is not taken for a sound one.
local here, gone, remembered, since = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local new = 0
if here == '' then
  redis.call('ZREM', KEYS[1], gone)
else
  new = redis.call('ZADD', KEYS[1], string.format('%.0f', now), here)
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - tonumber(remembered)))
redis.call('PEXPIRE', KEYS[1], remembered)
if since == 0 then since = now - 1000 end
local listed, present = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'), 0
for i = 2, #listed, 2 do
  if tonumber(listed[i]) >= since then present = present + 1 end
end
local reply = { now, new, #listed / 2, present }
local held = ARGV[5]
if not held then return reply end
local holder = here ~= '' and here or gone
if held ~= '' then
  redis.call('HSET', KEYS[2], holder, held)
  redis.call('PEXPIRE', KEYS[2], remembered)
else
  redis.call('HDEL', KEYS[2], holder)
end
local holdings, hashed = {}, redis.call('HGETALL', KEYS[2])
for i = 1, #hashed, 2 do holdings[hashed[i]] = hashed[i + 1] end
reply[#reply + 1] = redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES')
for i = 1, #listed, 2 do
  local name = listed[i]
  reply[#reply + 1], reply[#reply + 2] = name, math.max(0, now - tonumber(listed[i + 1]))
  reply[#reply + 1] = holdings[name] or ''
  holdings[name] = nil
end
-- A gateway that is not remembered any more holds nothing.
for name in pairs(holdings) do redis.call('HDEL', KEYS[2], name) end
return reply
