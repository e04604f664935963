-- What all ways of counting share. A number of Lua is exact up to 2^53, and written in full only if told so.
local PASS, DELAY, REFUSE, PENALIZE = 0, 1, 2, 3
local NEVER = -1

local function written(numbers)
  for i = 1, #numbers do numbers[i] = string.format('%.0f', numbers[i]) end
  return table.concat(numbers, ' ')
end

-- Whether the key that was loaded last was there, and until when keys stay out that serve a penalty.
local found, out_until = false, {}

-- The numbers kept under a key, any number of them unless it is said how many; none for one that is not known, or that
-- another program has written. A penalty stands behind them, so that a key is one place whatever is known of it.
local function kept(key, count)
  local numbers, text = {}, redis.call('GET', key) or ''
  local before, ends = string.match(text, '^(.-) ?p(%d+)$')
  if ends then text, out_until[key] = before, tonumber(ends) end
  found = false
  for word in string.gmatch(text, '%S+') do
    local number = tonumber(word)
    if not number then return {} end
    numbers[#numbers + 1] = number
  end
  if count and #numbers ~= count then return {} end
  found = #numbers > 0
  return numbers
end

-- For how much longer a key stays out that was loaded.
local function penalty_left(key)
  return math.max(0, (out_until[key] or 0) - now)
end

-- Keeps numbers until they say nothing any more. A key that would be forgotten earlier had its burst twice.
local function keep(key, drained_at, numbers)
  local left, out = drained_at - now, penalty_left(key)
  local text = written(numbers)
  if out > 0 then left, text = math.max(left, out), text .. ' p' .. string.format('%.0f', out_until[key]) end
  if left <= 0 then
    redis.call('DEL', key)
  else
    redis.call('SET', key, text, 'PX', string.format('%.0f', left + 1))
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

-- One table for each algorithm. `numbers` are those of `script_args`; a state is a table of its own, in which only `moved` is read
-- by others: that it has to be saved though nothing was charged.
--   load(key, numbers)         the state kept under a key, or a new one
--   ask(state, cost, numbers)  PASS, DELAY or REFUSE, the excess, and how many milliseconds to wait or NEVER; changes nothing
--   debit, refund, fill        (state, cost, numbers): charge, take back, and charge a refused request as far as something is left
--   left(state, numbers)       how many whole requests more would pass now
--   save(key, state, numbers)  keeps it, by `keep`
--   one(numbers)               what one request costs, unless that is numbers[1]
--   give_back(state, cost)     takes back what a lease did not use, unless by `refund`
--   lease_ends_with_window     a lease is of one window, numbers[3] milliseconds long
local ways = {}

-- Loads a key. A gateway says how many requests it knows the key to have left at most (less than nothing: it does not know). That
-- counts where the server has lost its memory: where the key is missing, or where the gateway says that it was `lost`. Not for a key
-- that an operator had forgotten.
local function load(way, key, told, lost, numbers)
  local state = way.load(key, numbers)
  if told < 0 or found and not lost then return state end
  -- Where both know the key, one request may be the difference of two clocks.
  local gone = way.left(state, numbers) - told - (found and 1 or 0)
  -- Called so that it may fail: a slot on the move has no keys that were not named.
  if gone > 0 and not redis.pcall('GET', key .. ':anew') then
    way.debit(state, gone * (way.one and way.one(numbers) or numbers[1]), numbers)
  end
  return state
end
