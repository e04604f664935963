-- The token bucket: kept is what was taken and has not come back. Numbers: units in a request, units that come back in a
-- millisecond, and how many there are at most.
ways.token_bucket = {
  load = level_load,
  ask = function(state, cost, numbers)
    local unit, rate, capacity = numbers[1], numbers[2], numbers[3]
    local taken = level_with(state.height, state.last, 0, rate)
    local excess = math.max(0, taken + cost - unit)
    if taken + cost > capacity then
      return REFUSE, excess, level_room_after(state.height, state.last, cost, capacity, rate)
    end
    return PASS, excess, 0
  end,
  debit = level_debit,
  refund = level_refund,
  fill = function(state, cost, numbers)
    level_fill(state, cost, numbers[3], numbers[2])
  end,
  left = function(state, numbers)
    return level_left(state, numbers[1], numbers[3], numbers[2])
  end,
  save = level_save,
}
