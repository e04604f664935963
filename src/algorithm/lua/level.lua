-- A level that rises with every request and falls with time: the same arithmetic as `src/algorithm/quantities.rs`.
-- Kept as height, moment of the last charge, and units in a request: a change of the rate changes the unit.
local function level_kept(key, unit)
  local was = kept(key, 3)
  if not was[1] then return 0, now end
  if was[3] ~= unit then return math.ceil(was[1] * unit / was[3]), was[2] end
  return was[1], was[2]
end

local function level_with(height, last, cost, rate)
  local elapsed = now - last
  -- The clock went back: by a little after a failover, or it really jumped.
  if elapsed < 0 then
    if elapsed >= -60000 then elapsed = 0 else elapsed = 1 end
  end
  local left = math.max(0, height - elapsed * rate)
  if elapsed == 0 then return left + cost, last end
  return left + cost, now
end

local function level_falls_to(height, last, to, rate)
  return last + math.ceil(math.max(0, height - to) / rate)
end

-- How long until `cost` fits under `capacity`.
local function level_room_after(height, last, cost, capacity, rate)
  if cost > capacity then return NEVER end
  return math.max(0, level_falls_to(height, last, capacity - cost, rate) - now)
end

local function level_keep(key, state, unit, rate)
  keep(key, level_falls_to(state.height, state.last, 0, rate), { state.height, state.last, unit })
end

local function level_load(key, numbers)
  local height, last = level_kept(key, numbers[1])
  return { height = height, last = last }
end

local function level_debit(state, cost, numbers)
  state.height, state.last = level_with(state.height, state.last, cost, numbers[2])
end

local function level_refund(state, cost)
  state.height = math.max(0, state.height - cost)
end

local function level_save(key, state, numbers)
  level_keep(key, state, numbers[1], numbers[2])
end

-- A refused request fills what is left.
local function level_fill(state, cost, capacity, rate)
  local left, last = level_with(state.height, state.last, 0, rate)
  state.height = math.max(left, math.min(left + cost, capacity))
  state.last = last
end

-- How many whole requests more would fit under `capacity`.
local function level_left(state, unit, capacity, rate)
  local height = level_with(state.height, state.last, 0, rate)
  return math.floor(math.max(0, capacity - height) / unit)
end
