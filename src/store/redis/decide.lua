-- All rules of a request at once: all are asked, and all are charged unless one refuses. Or all are charged whatever is left, given back,
-- or kept out for as long as a request may wait.
-- Answers with four numbers for each: what it said, the excess, how long to wait, and how many more would pass now.
-- ARGV: what to do, whether the server is known to have lost its memory, then for each key its way of counting, whether refusals
-- count, how long a request over the burst may wait until it is not (less than nothing: not at all), how many requests it is known
-- to have left at most, whether it may be serving a penalty, the cost and four numbers.
local act, lost = ARGV[1], ARGV[2] == '1'

-- What becomes of a request that would pass later, if it waits for that: when it is its turn it is as if it came then.
local function wait_for_turn(rule, turn, longest)
  if turn < 0 or turn > longest then return REFUSE, turn end
  now = now + turn
  local kind, _, more = rule.way.ask(load(rule.way, rule.key, rule.told, lost, rule.numbers), rule.cost, rule.numbers)
  now = now - turn
  local wait = turn + (kind == DELAY and more or 0)
  if wait > longest then return REFUSE, turn end
  return DELAY, wait
end

local asked, answers, refused = {}, {}, false
for i = 1, #KEYS do
  local at = 10 * i - 7
  local way = ways[ARGV[at]]
  local numbers = {}
  for n = 1, 4 do numbers[n] = tonumber(ARGV[at + 5 + n]) end
  local rule = { key = KEYS[i], way = way, cost = tonumber(ARGV[at + 5]), numbers = numbers }
  rule.longest, rule.told = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  rule.state = load(way, rule.key, rule.told, lost, numbers)
  if act == 'charge' then
    local kind, excess, millis = way.ask(rule.state, rule.cost, numbers)
    local out = ARGV[at + 4] == '1' and penalty_left(rule.key) or 0
    if out > 0 then
      kind, excess, millis, refused = PENALIZE, 0, out, true
    elseif kind == REFUSE then
      kind, millis = wait_for_turn(rule, millis, rule.longest)
    end
    if kind == REFUSE then
      refused = true
      rule.fills = ARGV[at + 1] == '1'
    end
    rule.kind, rule.excess, rule.millis = kind, excess, millis
  end
  asked[i] = rule
end
for i, rule in ipairs(asked) do
  if act == 'punish' then
    -- Who stays out already does so for no longer.
    if penalty_left(rule.key) == 0 then out_until[rule.key] = now + rule.longest end
  elseif act == 'refund' then
    rule.way.refund(rule.state, rule.cost, rule.numbers)
  elseif not refused then
    rule.way.debit(rule.state, rule.cost, rule.numbers)
  elseif rule.fills then
    rule.way.fill(rule.state, rule.cost, rule.numbers)
  end
  -- After a jump of the clock a refused key goes on from the new time, too.
  if not refused or rule.fills or rule.state.moved then rule.way.save(rule.key, rule.state, rule.numbers) end
  if act == 'charge' then
    answers[4 * i - 3], answers[4 * i - 2], answers[4 * i - 1] = rule.kind, rule.excess, rule.millis
    answers[4 * i] = rule.way.left(rule.state, rule.numbers)
  end
end
return answers
