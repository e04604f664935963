-- The sliding window as Cloudflare estimates it. Kept: what came in this window and in the one before, when this one began, and
-- units in a request. An excess is in units times milliseconds. Numbers: units in a request, how much in any window, and its
-- length in milliseconds.
local function counters_at(state, numbers)
  local length = numbers[3]
  local at, back = moment(state.start)
  local start = at - at % length
  local passed = math.floor(math.max(0, start - (state.start - back)) / length)
  local counters = { start = start, current = 0, previous = 0 }
  if passed == 0 then
    counters.current, counters.previous = state.current, state.previous
  elseif passed == 1 then
    counters.previous = state.current
  end
  return counters, length - (at - start)
end

local function counters_room_at(counters, left, cost, numbers)
  local limit, length = numbers[2], numbers[3]
  local room = limit - cost
  if room < 0 then return nil end
  local stop = counters.start + length
  if counters.current <= room then
    if counters.previous > 0 then
      left = math.min(left, math.floor((room - counters.current) * length / counters.previous))
    end
    return stop - left
  end
  return stop + length - math.min(length, math.floor(room * length / counters.current))
end

ways.sliding_window = {
  lease_ends_with_window = true,
  load = function(key, numbers)
    local was = kept(key, 4)
    if not was[1] then return { current = 0, previous = 0, start = now - now % numbers[3] } end
    local unit = numbers[1] / was[4]
    return { current = math.ceil(was[1] * unit), previous = math.ceil(was[2] * unit), start = was[3] }
  end,
  ask = function(state, cost, numbers)
    local length = numbers[3]
    local counters, left = counters_at(state, numbers)
    local surplus = counters.previous * left + (counters.current + cost - numbers[2]) * length
    if surplus > 0 then
      local room_at = counters_room_at(counters, left, cost, numbers)
      return REFUSE, surplus, room_at and math.max(0, room_at - now) or NEVER
    end
    return PASS, 0, 0
  end,
  debit = function(state, cost, numbers)
    local counters = counters_at(state, numbers)
    state.start, state.previous, state.current = counters.start, counters.previous, counters.current + cost
  end,
  refund = function(state, cost, numbers)
    -- Of an earlier window there is nothing left to give back.
    if counters_at(state, numbers).start == state.start then state.current = math.max(0, state.current - cost) end
  end,
  fill = function(state, cost, numbers)
    local counters = counters_at(state, numbers)
    state.start, state.previous = counters.start, counters.previous
    state.current = math.max(counters.current, math.min(counters.current + cost, numbers[2]))
  end,
  left = function(state, numbers)
    local counters, left = counters_at(state, numbers)
    local room = (numbers[2] - counters.current) * numbers[3] - counters.previous * left
    return math.floor(math.max(0, room) / numbers[3] / numbers[1])
  end,
  save = function(key, state, numbers)
    local windows = state.current > 0 and 2 or state.previous > 0 and 1 or 0
    keep(key, state.start + windows * numbers[3], { state.current, state.previous, state.start, numbers[1] })
  end,
}
