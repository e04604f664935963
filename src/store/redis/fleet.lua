-- A gateway says that it is there, and hears who else is. ARGV: its name, for how long one counts as there, and for
-- how long it is remembered, in milliseconds. Without a name it says goodbye: ARGV[4]. What it has in hand is ARGV[5].
-- Answers with how many are there, whether this one was not listed before, which keys were forgotten lately and when, and for each
-- gateway its name, its silence and what it has in hand.
-- The first write is one that takes memory: a server that has none to give says so, and is not taken for a sound one.
local new = 0
if ARGV[1] == '' then
  redis.call('ZREM', KEYS[1], ARGV[4])
else
  new = redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - tonumber(ARGV[3])))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[5])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
else
  redis.call('HDEL', KEYS[2], ARGV[1] ~= '' and ARGV[1] or ARGV[4])
end
local in_hand, hands = {}, redis.call('HGETALL', KEYS[2])
for i = 1, #hands, 2 do in_hand[hands[i]] = hands[i + 1] end
local there, answer = 0, {}
local seen = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #seen, 2 do
  local ago = math.max(0, now - tonumber(seen[i + 1]))
  if ago <= tonumber(ARGV[2]) then there = there + 1 end
  local name = seen[i]
  answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = name, ago, in_hand[name] or ''
  in_hand[name] = nil
end
-- Who is not remembered any more has nothing.
for name in pairs(in_hand) do redis.call('HDEL', KEYS[2], name) end
table.insert(answer, 1, there)
table.insert(answer, 2, new)
table.insert(answer, 3, redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES'))
return answer
