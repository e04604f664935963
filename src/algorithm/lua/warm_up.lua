-- a * b / c, the rest cut off, where a number cannot hold a * b; b is at most a few times c.
local function portion(a, b, c)
  local whole = math.floor(b / c)
  local rest, sum, quotient, remainder = b - whole * c, whole * a, 0, 0
  local bit = 2 ^ 52
  while bit >= 1 do
    quotient, remainder = quotient * 2, remainder * 2
    if a >= bit then a, remainder = a - bit, remainder + rest end
    while remainder >= c do quotient, remainder = quotient + 1, remainder - c end
    bit = bit / 2
  end
  return sum + quotient
end

-- What is saved is dearer the colder a key is: level up to the half of it, rising from there to three times as much.
ways.warm_up = reserve(
  function(saved, spent, most)
    local half = math.floor(most / 2)
    local from, to = math.max(0, saved - half), math.max(0, saved - spent - half)
    return portion(from - to, 2 * (from + to), math.max(1, most)) + spent
  end,
  function(saved, room, most)
    local cold = math.max(0, saved - math.floor(most / 2))
    local time = room - 2 * cold * cold / math.max(1, most)
    if time >= cold then return time end
    local slope = most + 4 * cold
    return (slope - math.sqrt(math.max(0, slope * slope - 8 * most * room))) / 4
  end,
  true
)
