-- All rules of a request at once: all are asked, and all are charged unless one refuses.
-- Answers with four numbers for each: what it said, the excess, how long to wait, and how many more would pass now.
-- ARGV: what to do, then for each key its way of counting, whether refusals count, how long a request over the burst may wait
-- until it is not (less than nothing: not at all), the cost and four numbers.
local act = ARGV[1]

-- What becomes of a request that would pass later, if it waits for that: when it is its turn it is as if it came then.
local function wait_for_turn(rule, turn, longest)
  if turn < 0 or turn > longest then return REFUSE, turn end
  now = now + turn
  local kind, _, more = rule.way.ask(rule.way.load(rule.key, rule.numbers), rule.cost, rule.numbers)
  now = now - turn
  local wait = turn + (kind == DELAY and more or 0)
  if wait > longest then return REFUSE, turn end
  return DELAY, wait
end

local asked, answers, refused = {}, {}, false
for i = 1, #KEYS do
  local at = 8 * i - 6
  local way = ways[ARGV[at]]
  local numbers = {}
  for n = 1, 4 do numbers[n] = tonumber(ARGV[at + 3 + n]) end
  local rule = { key = KEYS[i], way = way, cost = tonumber(ARGV[at + 3]), numbers = numbers }
  rule.state = way.load(rule.key, numbers)
  if act == 'charge' then
    local kind, excess, millis = way.ask(rule.state, rule.cost, numbers)
    if kind == REFUSE then
      kind, millis = wait_for_turn(rule, millis, tonumber(ARGV[at + 2]))
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
  if act == 'refund' then
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
