-- What all ways of counting share. A number of Lua is exact up to 2^53, and written in full only if told so.
local PASS, DELAY, REFUSE = 0, 1, 2
local NEVER = -1

local function written(numbers)
  for i = 1, #numbers do numbers[i] = string.format('%.0f', numbers[i]) end
  return table.concat(numbers, ' ')
end

-- The numbers kept under a key, any number of them unless it is said how many; none for one that is not known, or that
-- somebody else has written.
local function kept(key, count)
  local numbers = {}
  for word in string.gmatch(redis.call('GET', key) or '', '%S+') do
    local number = tonumber(word)
    if not number then return {} end
    numbers[#numbers + 1] = number
  end
  if count and #numbers ~= count then return {} end
  return numbers
end

-- Keeps numbers until they say nothing any more. A key that would be forgotten earlier had its burst twice.
local function keep(key, drained_at, numbers)
  local left = drained_at - now
  if left <= 0 then
    redis.call('DEL', key)
  else
    redis.call('SET', key, written(numbers), 'PX', string.format('%.0f', left + 1))
  end
end

-- Takes so much out of what came when, the oldest first.
local function drop_oldest(state, amount)
  while amount > 0 and state.entries[1] do
    local oldest = state.entries[1]
    local taken = math.min(amount, oldest.cost)
    oldest.cost, state.total, amount = oldest.cost - taken, state.total - taken, amount - taken
    if oldest.cost == 0 then table.remove(state.entries, 1) end
  end
end

local ways = {}
