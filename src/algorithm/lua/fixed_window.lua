-- So many in a window, and windows follow each other. Kept: what is used, when the window began, and units in a request.
-- Numbers: units in a request, how much in a window, and its length in milliseconds.
local function window_at(state, numbers)
  local limit, length = numbers[2], numbers[3]
  local at, back = moment(state.start)
  local start = at - at % length
  local passed = math.floor(math.max(0, start - (state.start - back)) / length)
  return { used = math.max(0, state.used - passed * limit), start = start }
end

local function window_freed_at(state, surplus, numbers)
  return state.start + math.ceil(surplus / math.max(1, numbers[2])) * numbers[3]
end

ways.fixed_window = {
  lease_ends_with_window = true,
  load = function(key, numbers)
    local was = kept(key, 3)
    if not was[1] then return { used = 0, start = now - now % numbers[3] } end
    return { used = math.ceil(was[1] * numbers[1] / was[3]), start = was[2] }
  end,
  ask = function(state, cost, numbers)
    local window = window_at(state, numbers)
    local surplus = window.used + cost - numbers[2]
    if surplus > 0 then
      if cost > numbers[2] then return REFUSE, surplus, NEVER end
      return REFUSE, surplus, math.max(0, window_freed_at(window, surplus, numbers) - now)
    end
    return PASS, 0, 0
  end,
  debit = function(state, cost, numbers)
    local window = window_at(state, numbers)
    state.used, state.start = window.used + cost, window.start
  end,
  refund = function(state, cost, numbers)
    -- Of an earlier window there is nothing left to give back.
    if window_at(state, numbers).start == state.start then state.used = math.max(0, state.used - cost) end
  end,
  fill = function(state, cost, numbers)
    local window = window_at(state, numbers)
    state.used = math.max(window.used, math.min(window.used + cost, numbers[2]))
    state.start = window.start
  end,
  left = function(state, numbers)
    return math.floor(math.max(0, numbers[2] - window_at(state, numbers).used) / numbers[1])
  end,
  save = function(key, state, numbers)
    keep(key, window_freed_at(state, state.used, numbers), { state.used, state.start, numbers[1] })
  end,
}
