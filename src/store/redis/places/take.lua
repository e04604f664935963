-- One place in each of several sets, or none. Answers 0, or which of them is full.
-- ARGV: for how long a place is kept without a word, in milliseconds, and what it is called; then for each key how many
-- there may be, how many places have been given back without that being heard here yet, and what those are called.
local lease, place = tonumber(ARGV[1]), ARGV[2]
local after = '(' .. string.format('%.0f', now)
local at, left = 3, {}
for i, key in ipairs(KEYS) do
  local limit, gone = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local taken = redis.call('ZCOUNT', key, after, '+inf')
  left[i] = {}
  for n = 1, gone do
    local name = ARGV[at + 1 + n]
    local score = redis.call('ZSCORE', key, name)
    if score and tonumber(score) > now then taken = taken - 1 end
    left[i][n] = name
  end
  if taken >= limit then return i end
  at = at + 2 + gone
end
for i, key in ipairs(KEYS) do
  -- The first write is one that takes memory: a server that has none to give says so.
  redis.call('ZADD', key, string.format('%.0f', now + lease), place)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now))
  for _, name in ipairs(left[i]) do redis.call('ZREM', key, name) end
  redis.call('PEXPIRE', key, string.format('%.0f', lease + 1))
end
return 0
