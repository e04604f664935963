-- Guava's way of counting, in nanoseconds: the same arithmetic as `src/algorithm/smooth.rs`. Kept: how far ahead of the moment of
-- its last charge a key is free again, what it has saved by then, what that charge spent of it, and that moment in milliseconds.
-- Costs come as the time they take. Numbers: the longest wait, the most that is saved, and the time that one request takes.
local function reserve_at(state, most)
  local at, back = moment(state.last)
  local ahead = state.ahead
  if back == 0 then ahead = ahead - (at - state.last) * 1000000 end
  return { ahead = math.max(0, ahead), saved = math.min(state.saved + math.max(0, -ahead), most), last = at }
end

-- `of`: what it takes to spend so much of what is saved; `takes`: how much passes a key in so much time; `full`: whether
-- an unknown key has saved all it can.
local function reserve(of, takes, full)
  local way = { one = function(numbers) return numbers[3] end }
  way.load = function(key, numbers)
    local was = kept(key, 4)
    if not was[1] then return { ahead = 0, saved = full and numbers[2] or 0, spent = 0, last = now } end
    return { ahead = was[1], saved = was[2], spent = was[3], last = was[4] }
  end
  way.ask = function(state, cost, numbers)
    local wait = reserve_at(state, numbers[2]).ahead
    if wait > numbers[1] then return REFUSE, wait, math.ceil((wait - numbers[1]) / 1000000) end
    -- Less than a millisecond is no wait.
    local millis = math.floor(wait / 1000000)
    return millis > 0 and DELAY or PASS, wait, millis
  end
  way.debit = function(state, cost, numbers)
    local key = reserve_at(state, numbers[2])
    local spent = math.min(cost, key.saved)
    state.ahead = key.ahead + of(key.saved, spent, numbers[2]) + cost - spent
    state.saved, state.spent, state.last = key.saved - spent, spent, key.last
  end
  way.refund = function(state, cost, numbers)
    -- Should another have come in between, it is that one's share that is given back: as much, taken from the other side.
    local spent = math.min(cost, state.spent)
    state.saved = math.min(state.saved + spent, numbers[2])
    state.ahead = state.ahead - of(state.saved, spent, numbers[2]) - (cost - spent)
    state.spent = 0
  end
  way.fill = function(state, cost, numbers)
    local key = reserve_at(state, numbers[2])
    state.ahead, state.saved, state.spent = math.max(key.ahead, numbers[1] + cost), key.saved, 0
    state.last = key.last
  end
  way.left = function(state, numbers)
    local key = reserve_at(state, numbers[2])
    if key.ahead > numbers[1] then return 0 end
    local time = takes(key.saved, numbers[1] - key.ahead, numbers[2])
    return math.min(math.floor(math.max(0, time) / math.max(1, numbers[3])), 213503981) + 1
  end
  way.save = function(key, state, numbers)
    -- Who is forgotten has saved all, or nothing: what was saved is then kept for an hour after all of it has been.
    local missing = numbers[2] - state.saved
    local free_at = state.last + math.ceil((state.ahead + math.max(0, missing)) / 1000000)
    keep(key, full and free_at or free_at + 3600000, { state.ahead, state.saved, state.spent, state.last })
  end
  return way
end
