-- nginx's leaky bucket. Numbers: units in a request, units that leak in a millisecond, burst, and the excess beyond
-- which requests wait (less than nothing: none waits).
ways.leaky_bucket = {
  load = level_load,
  ask = function(state, cost, numbers)
    local unit, rate, burst, threshold = numbers[1], numbers[2], numbers[3], numbers[4]
    local height = level_with(state.height, state.last, cost, rate)
    local excess = math.max(0, height - unit)
    if excess > burst then
      return REFUSE, excess, level_room_after(state.height, state.last, cost, burst + unit, rate)
    end
    if threshold >= 0 then
      local wait = math.floor(math.max(0, excess - threshold) / rate)
      if wait > 0 then return DELAY, excess, wait end
    end
    return PASS, excess, 0
  end,
  debit = level_debit,
  refund = level_refund,
  fill = function(state, cost, numbers)
    level_fill(state, cost, numbers[3] + numbers[1], numbers[2])
  end,
  left = function(state, numbers)
    return level_left(state, numbers[1], numbers[3] + numbers[1], numbers[2])
  end,
  save = level_save,
}
