-- The generic cell rate algorithm, in nanoseconds. Kept: how far the theoretical arrival time lies ahead of the moment it was
-- last moved, and that moment in milliseconds; both fit into a number of Lua where their sum would not. Costs come as the time
-- they take. Numbers: the time between two requests, and how far ahead the arrival time may be.
local function gcra_at(state)
  local at, back = moment(state.last)
  if back > 0 then return math.max(0, state.ahead), at end
  return math.max(0, state.ahead - (at - state.last) * 1000000), at
end

ways.gcra = {
  load = function(key, numbers)
    local was = kept(key, 2)
    return { ahead = was[1] or 0, last = was[2] or now }
  end,
  ask = function(state, cost, numbers)
    local ahead, at = gcra_at(state)
    local tolerance = numbers[2]
    if ahead + cost > tolerance then
      if cost > tolerance then return REFUSE, ahead + cost, NEVER end
      local wait = (at - now) * 1000000 + ahead + cost - tolerance
      return REFUSE, ahead + cost, math.ceil(math.max(0, wait) / 1000000)
    end
    return PASS, ahead + cost, 0
  end,
  debit = function(state, cost)
    local ahead, at = gcra_at(state)
    state.ahead, state.last = ahead + cost, at
  end,
  refund = function(state, cost)
    state.ahead = state.ahead - cost
  end,
  fill = function(state, cost, numbers)
    local ahead, at = gcra_at(state)
    state.ahead = math.max(ahead, math.min(ahead + cost, numbers[2]))
    state.last = at
  end,
  left = function(state, numbers)
    return math.floor(math.max(0, numbers[2] - gcra_at(state)) / math.max(1, numbers[1]))
  end,
  save = function(key, state)
    keep(key, state.last + math.ceil(state.ahead / 1000000), { state.ahead, state.last })
  end,
}
