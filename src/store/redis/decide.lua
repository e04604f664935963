-- All rules of a request at once: all are asked, and all are charged unless one refuses.
-- Answers with four numbers for each: what it said, the excess, how long to wait, and how many more would pass now.
-- ARGV: what to do, then for each key its way of counting, whether refusals count, the cost and four numbers.
local act = ARGV[1]
local asked, answers, refused = {}, {}, false
for i = 1, #KEYS do
  local at = 7 * i - 5
  local way = ways[ARGV[at]]
  local numbers = {}
  for n = 1, 4 do numbers[n] = tonumber(ARGV[at + 2 + n]) end
  local rule = { key = KEYS[i], way = way, cost = tonumber(ARGV[at + 2]), numbers = numbers }
  rule.state = way.load(rule.key, numbers)
  if act == 'charge' then
    local kind, excess, millis = way.ask(rule.state, rule.cost, numbers)
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
  if not refused or rule.fills then rule.way.save(rule.key, rule.state, rule.numbers) end
  if act == 'charge' then
    answers[4 * i - 3], answers[4 * i - 2], answers[4 * i - 1] = rule.kind, rule.excess, rule.millis
    answers[4 * i] = rule.way.left(rule.state, rule.numbers)
  end
end
return answers
