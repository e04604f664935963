-- Leases: what a gateway takes from the shared count before it spends it, for many keys at once and each by itself.
-- ARGV: whether the server is known to have lost its memory, the list of gateways (empty in a cluster, where it lies elsewhere) and this
-- gateway's name in it, how many gateways share, and for how many requests one counts, then for each key its way of counting, how many requests it is known to have left at most, what is owed, what is given back and in which window it
-- was leased, how many requests are wanted, whether it may be serving a penalty, and four numbers.
-- Answers with eight numbers for each: what one request would have been told, its excess and how long it would have waited,
-- how many more would pass now, how many are leased, for how long, in which window, and for how long it serves a penalty.
local lost, gateways, weight = ARGV[1] == '1', tonumber(ARGV[4]), tonumber(ARGV[5])
-- A list without this gateway is one that began anew since its last report. Called so that it may fail: without the right to, the
-- next report tells.
if ARGV[2] ~= '' then lost = lost or redis.pcall('ZSCORE', ARGV[2], ARGV[3]) == false end
local answers = {}
for i = 1, #KEYS do
  local at = 11 * i - 5
  local way = ways[ARGV[at]]
  local owed, back, leased_in = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local want = tonumber(ARGV[at + 5])
  local numbers = {}
  for n = 1, 4 do numbers[n] = tonumber(ARGV[at + 6 + n]) end
  local window, lasts = 0, NEVER
  if way.lease_ends_with_window then
    window = now - now % numbers[3]
    lasts = window + numbers[3] - now
  end
  local state = load(way, KEYS[i], tonumber(ARGV[at + 1]), lost, numbers)
  -- What was leased in another window is not missing from this one.
  local returned = back > 0 and leased_in == window
  if returned then (way.give_back or way.refund)(state, back, numbers) end
  -- What passed on credit counts for as many as what is leased: the part of missing gateways is left to them.
  if owed > 0 then way.debit(state, math.ceil(owed * weight), numbers) end
  local kind, excess, millis = way.ask(state, numbers[1], numbers)
  local granted, out = 0, ARGV[at + 6] == '1' and penalty_left(KEYS[i]) or 0
  if out > 0 then kind, excess, millis = REFUSE, 0, out end
  if want > 0 and kind ~= REFUSE then
    -- A gateway takes no more than its part of what is left: others may need some.
    local left = way.left(state, numbers)
    granted = math.min(want, left, math.max(1, math.floor(left / gateways / weight)))
    if granted > 0 then way.debit(state, math.ceil(granted * weight * numbers[1]), numbers) end
  end
  if returned or owed > 0 or granted > 0 then way.save(KEYS[i], state, numbers) end
  local left = way.left(state, numbers)
  for _, number in ipairs({ kind, excess, millis, left, granted, lasts, window, out }) do
    answers[#answers + 1] = number
  end
end
return answers
