-- A queue that is emptied at a constant rate: kept is what is ahead of the next request. Numbers: units in a request,
-- units that are let out in a millisecond, and how much may be ahead of a request.
ways.paced = {
  load = level_load,
  ask = function(state, cost, numbers)
    local rate, depth = numbers[2], numbers[3]
    local ahead = level_with(state.height, state.last, 0, rate)
    if ahead > depth then
      return REFUSE, ahead, math.max(0, level_falls_to(state.height, state.last, depth, rate) - now)
    end
    local wait = math.floor(ahead / rate)
    if wait > 0 then return DELAY, ahead, wait end
    return PASS, ahead, 0
  end,
  debit = level_debit,
  refund = level_refund,
  fill = function(state, cost, numbers)
    level_fill(state, cost, numbers[3] + cost, numbers[2])
  end,
  left = function(state, numbers)
    local room = numbers[3] - level_with(state.height, state.last, 0, numbers[2])
    if room < 0 then return 0 end
    return math.floor(room / numbers[1]) + 1
  end,
  save = level_save,
}
