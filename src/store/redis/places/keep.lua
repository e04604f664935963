-- Places that are still held, or, if kept for no time, are not any more. ARGV: for how long they are kept without a word,
-- in milliseconds, and for each key what the place is called. One that is not known is held from now on.
local lease = tonumber(ARGV[1])
for i, key in ipairs(KEYS) do
  if lease > 0 then
    redis.call('ZADD', key, string.format('%.0f', now + lease), ARGV[i + 1])
    redis.call('PEXPIRE', key, string.format('%.0f', lease + 1))
  else
    redis.call('ZREM', key, ARGV[i + 1])
  end
end
return 0
