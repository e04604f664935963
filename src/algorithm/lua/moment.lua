-- What time it is for a key that was last seen at `last`, and by how much the clock has jumped back:
-- as `KeyTime` in `src/algorithm/quantities.rs`.
local function moment(last)
  if last <= now then return now, 0 end
  if last - now <= 60000 then return last, 0 end
  return now, last - now
end
