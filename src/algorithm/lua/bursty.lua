-- What is saved is free.
ways.bursty = reserve(
  function() return 0 end,
  function(saved, room) return saved + room end,
  false
)
