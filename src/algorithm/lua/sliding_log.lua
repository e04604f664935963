-- When each request came. Kept: units in a request, then moment and cost of each, the oldest first. Numbers: units in a request,
-- how much in any window, its length in milliseconds, and how many entries there may be.
local function journal_add(state, cost, most)
  if cost == 0 then return end
  local entries = state.entries
  local last = entries[#entries]
  state.total = state.total + cost
  if last and (last.at == state.at or #entries >= most) then
    last.at, last.cost = state.at, last.cost + cost
  else
    entries[#entries + 1] = { at = state.at, cost = cost }
  end
end

ways.sliding_log = {
  load = function(key, numbers)
    local was = kept(key)
    local scale = was[1] and numbers[1] / was[1] or 1
    local at, back = moment(was[#was - 1] or now)
    local state = { entries = {}, total = 0, at = at, moved = back > 0 }
    for i = 2, #was - 1, 2 do
      local entry = { at = was[i] - back, cost = math.ceil(was[i + 1] * scale) }
      -- What is out of the window goes, also for a refused key: a clock that is set back a little does not bring it back.
      if at - entry.at < numbers[3] then
        state.entries[#state.entries + 1] = entry
        state.total = state.total + entry.cost
      else
        state.moved = true
      end
    end
    return state
  end,
  ask = function(state, cost, numbers)
    local limit, length = numbers[2], numbers[3]
    local surplus = state.total + cost - limit
    if surplus <= 0 then return PASS, 0, 0 end
    if cost > limit then return REFUSE, surplus, NEVER end
    local left, at = state.total, now
    for _, entry in ipairs(state.entries) do
      if left <= limit - cost then break end
      left, at = left - entry.cost, entry.at + length
    end
    return REFUSE, surplus, math.max(0, at - now)
  end,
  debit = function(state, cost, numbers)
    journal_add(state, cost, numbers[4])
  end,
  refund = function(state, cost)
    local last = state.entries[#state.entries]
    if not last then return end
    local back = math.min(cost, last.cost)
    last.cost, state.total = last.cost - back, state.total - back
    if last.cost == 0 then table.remove(state.entries) end
  end,
  -- The oldest first: they are the first to be out of the window anyhow, so no client gains by it.
  give_back = drop_oldest,
  fill = function(state, cost, numbers)
    cost = math.min(cost, numbers[2])
    drop_oldest(state, math.min(cost, math.max(0, state.total + cost - numbers[2])))
    journal_add(state, cost, numbers[4])
  end,
  left = function(state, numbers)
    return math.floor(math.max(0, numbers[2] - state.total) / numbers[1])
  end,
  save = function(key, state, numbers)
    local flat = { numbers[1] }
    for _, entry in ipairs(state.entries) do
      flat[#flat + 1], flat[#flat + 2] = entry.at, entry.cost
    end
    local last = state.entries[#state.entries]
    keep(key, last and last.at + numbers[3] or 0, flat)
  end,
}
