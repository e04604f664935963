-- The sliding window in blocks: as `Blocks` in `src/algorithm/sliding_window.rs`. Kept: units in a request, length of a block, the newest block,
-- then number and count of each that has one, the oldest first. Numbers: units in a request, how much in any window, the length
-- of a block in milliseconds, and how many of them are counted, the current one included.
local function blocks_add(state, cost)
  if cost == 0 then return end
  local last = state.entries[#state.entries]
  state.total = state.total + cost
  if last and last.block == state.newest then
    last.cost = last.cost + cost
  else
    state.entries[#state.entries + 1] = { block = state.newest, cost = cost }
  end
end

ways.blocks = {
  load = function(key, numbers)
    local was, length = kept(key), numbers[3]
    local state = { entries = {}, total = 0, newest = math.floor(now / length) }
    if not was[3] then return state end
    local newest = math.floor(was[3] * was[2] / length)
    local at, back = moment(newest * length)
    state.newest, state.moved = math.floor(at / length), back > 0
    -- After a jump of the clock the newest block is the current one, and each other is one younger: where in its block the clock
    -- stood is not known.
    local shift = back > 0 and state.newest - newest + 1 or 0
    for i = 4, #was - 1, 2 do
      -- Where the length of a block has changed, what came in one may have come at its end.
      local block = math.floor(((was[i] + 1) * was[2] - 1) / length)
      block = math.min(block + shift, state.newest)
      local count = math.ceil(was[i + 1] * numbers[1] / was[1])
      -- What is out of the window goes.
      if block > state.newest - numbers[4] then
        local last = state.entries[#state.entries]
        if last and last.block == block then
          last.cost = last.cost + count
        else
          state.entries[#state.entries + 1] = { block = block, cost = count }
        end
        state.total = state.total + count
      end
    end
    return state
  end,
  ask = function(state, cost, numbers)
    local limit, length, blocks = numbers[2], numbers[3], numbers[4]
    local surplus = state.total + cost - limit
    if surplus <= 0 then return PASS, 0, 0 end
    if cost > limit then return REFUSE, surplus, NEVER end
    local left, at = state.total, now
    for _, entry in ipairs(state.entries) do
      if left <= limit - cost then break end
      left, at = left - entry.cost, (entry.block + blocks) * length
    end
    return REFUSE, surplus, math.max(0, at - now)
  end,
  debit = blocks_add,
  refund = function(state, cost)
    local last = state.entries[#state.entries]
    if not last then return end
    local back = math.min(cost, last.cost)
    last.cost, state.total = last.cost - back, state.total - back
    if last.cost == 0 then table.remove(state.entries) end
  end,
  fill = function(state, cost, numbers)
    cost = math.min(cost, numbers[2])
    drop_oldest(state, math.min(cost, math.max(0, state.total + cost - numbers[2])))
    blocks_add(state, cost)
  end,
  left = function(state, numbers)
    return math.floor(math.max(0, numbers[2] - state.total) / numbers[1])
  end,
  save = function(key, state, numbers)
    local flat = { numbers[1], numbers[3], state.newest }
    for _, entry in ipairs(state.entries) do
      flat[#flat + 1], flat[#flat + 2] = entry.block, entry.cost
    end
    local last = state.entries[#state.entries]
    keep(key, last and (state.newest + numbers[4]) * numbers[3] or 0, flat)
  end,
}
