#!lua
-- Refills, settles and debits one bucket pair, atomically. The same function as bucket.rs, step by
-- step and number by number: change both together, the differential test compares them.
--
-- KEYS[1]   the bucket pair, one string
-- ARGV      decimal integers; a missing tail counts as zeros
--    1      plan version                8  plan version of the last reset
--    2 3 4  burst: capacity, tokens, period in us      5 6 7  sustained, or 0 0 0
--    9      need    10  smallest need   11  flags: 1 peek, 2 lease, 4 witness, 8 witness forced
--   12      demand per second    13  low water    14  scarce poll in us    15  unused need
--   16 17   owed: burst, sustained
--   18..21  lease: generation, counted, held, returned
--   22..27  witness: at, burst, sustained, granted total, incarnation, version
-- Reply     integers: 1 granted, 2 lent, 3 lease dead, 4 5 burst level and part, 6 7 sustained,
--           8 outstanding, 9 at, 10 granted total, 11 incarnation,
--           12 found (0 known, 1 nothing, 2 unreadable), 13 plan version in force,
--           and only if that plan is not the caller's: 14..19 its six numbers
-- State     byte 1 and 11 doubles (no sustained bucket), or byte 2 and 16 doubles, little endian:
--           at, burst level, part, lent now, lent before, granted total, incarnation,
--           plan version, burst numbers [, sustained level, part, numbers]
--
-- Order: compute, check, write. SET is the last thing that can fail, so no error follows a debit.
-- What is stored is input: anything that cannot be a bucket counts as missing and is overwritten.
-- Every dividend stays below 2^53, so doubles are exact and so is %. Flat locals, and functions
-- made only where they are used: tables and closures are most of what a call costs. Marks at line
-- ends (an at sign and a number) are comments here; the differential test turns them into counters
-- of visited branches. Names end in _b for the burst bucket, in _s for the sustained one.
local EXACT = 9007199254740992
local TOKENS_MAX = 1125899906842624
local GENERATION = 500000
local min, max = math.min, math.max

-- how far below zero a level may be: one second of refill
local function debt_floor(capacity, tokens, period)
  local earned = tokens * 1000000
  local rest = earned % period
  return min(capacity, rest > 0 and (earned - rest) / period + 1 or earned / period)
end

local function sound_bucket(level, part, capacity, tokens, period)
  return capacity >= 1 and capacity <= 1000000000000 and capacity % 1 == 0
    and tokens >= 0 and tokens <= 1000000000 and tokens % 1 == 0
    and period >= 1 and period < EXACT and period % 1 == 0
    and tokens * 1000000 <= 1000000000 * period
    and (tokens > 0 or period == 1)
    and (2 * capacity * period < EXACT
      or (capacity + debt_floor(capacity, tokens, period)) * period < EXACT)
    and level <= capacity and level % 1 == 0
    and (level >= 0 or level >= 0 - debt_floor(capacity, tokens, period))
    and part >= 0 and part < period and part % 1 == 0
end

local function sound(at, level_b, part_b, lent_now, lent_before, total, incarnation, version,
    capacity_b, tokens_b, period_b, level_s, part_s, capacity_s, tokens_s, period_s)
  return at >= 0 and at < EXACT and at % 1 == 0
    and lent_now >= 0 and lent_now <= TOKENS_MAX and lent_now % 1 == 0
    and lent_before >= 0 and lent_before <= TOKENS_MAX and lent_before % 1 == 0
    and total >= 0 and total < EXACT and total % 1 == 0
    and incarnation >= 0 and incarnation < EXACT and incarnation % 1 == 0
    and version >= 0 and version < EXACT and version % 1 == 0
    and sound_bucket(level_b, part_b, capacity_b, tokens_b, period_b)
    and (capacity_s == 0 or sound_bucket(level_s, part_s, capacity_s, tokens_s, period_s))
end

-- arguments
local arg, number = ARGV, tonumber
local ask_version = number(arg[1]) or 0
local ask_capacity_b, ask_tokens_b, ask_period_b = number(arg[2]), number(arg[3]), number(arg[4])
local ask_capacity_s, ask_tokens_s, ask_period_s = number(arg[5]), number(arg[6]), number(arg[7])
local reset, need, smallest = number(arg[8]) or 0, number(arg[9]) or 0, number(arg[10]) or 0
if not ask_capacity_s then
  ask_capacity_s, ask_tokens_s, ask_period_s = 0, 0, 0
end
if not (ask_period_b and ask_period_b >= 1 and ask_tokens_s and ask_period_s) then
  return redis.error_reply('WEIRARGUMENT no plan')
end
local peek, has_lease, has_witness, forced = false, false, false, false
local demand, low_water, scarce_poll, unused, owed_b, owed_s = 0, 0, 0, 0, 0, 0
local more = number(arg[11])
if more then
  peek = more % 2 == 1
  has_lease = more % 4 >= 2
  has_witness = more % 8 >= 4
  forced = more % 16 >= 8
  demand, low_water, scarce_poll = number(arg[12]) or 0, number(arg[13]) or 0, number(arg[14]) or 0
  unused, owed_b, owed_s = number(arg[15]) or 0, number(arg[16]) or 0, number(arg[17]) or 0
end

local time = redis.call('TIME') --=clock
local now = time[1] * 1000000 + time[2]

-- the state in force
local at, level_b, part_b, lent_now, lent_before, total, incarnation, version
local capacity_b, tokens_b, period_b
local level_s, part_s, capacity_s, tokens_s, period_s = 0, 0, 0, 0, 0
local found = 1
local raw = redis.pcall('GET', KEYS[1])
if type(raw) == 'string' then
  local kind, size = string.byte(raw), #raw
  found = 2
  if kind == 1 and size == 89 then
    kind, at, level_b, part_b, lent_now, lent_before, total, incarnation, version,
      capacity_b, tokens_b, period_b = struct.unpack('<Bddddddddddd', raw)
    found = 0 --@1
  elseif kind == 2 and size == 129 then
    kind, at, level_b, part_b, lent_now, lent_before, total, incarnation, version,
      capacity_b, tokens_b, period_b, level_s, part_s, capacity_s, tokens_s, period_s =
      struct.unpack('<Bdddddddddddddddd', raw)
    found = capacity_s >= 1 and 0 or 2 --@2
  end
  if found == 0 and not sound(at, level_b, part_b, lent_now, lent_before, total, incarnation,
      version, capacity_b, tokens_b, period_b, level_s, part_s, capacity_s, tokens_s, period_s) then
    found = 2 --@3
  end
elseif raw then
  if not string.find(raw.err, 'WRONGTYPE', 1, true) then
    return raw
  end
  found = 2 --@4
end
if found > 0 then
  at, lent_now, lent_before, total, incarnation, version = now, 0, 0, 0, now, ask_version --@5
  level_b, part_b, level_s, part_s = ask_capacity_b, 0, ask_capacity_s, 0
  capacity_b, tokens_b, period_b = ask_capacity_b, ask_tokens_b, ask_period_b
  capacity_s, tokens_s, period_s = ask_capacity_s, ask_tokens_s, ask_period_s
end
local changed = found == 2
local generation = (at - at % GENERATION) / GENERATION

-- store time never runs back: a little is frozen, a lot rebases the bucket
if now < at then
  if at - now <= 2000000 then
    now = at --@6
  else
    lent_now, lent_before = lent_now + lent_before, 0 --@7
    generation = (now - now % GENERATION) / GENERATION
    at = now
    incarnation = incarnation + 1
    changed = true
  end
end

-- refill up to capacity - outstanding, under what was outstanding before settlement
local function refill(level, part, capacity, tokens, period, outstanding, elapsed)
  local room = capacity - outstanding
  if level >= room then --@8
    return level, 0
  elseif tokens == 0 then --@9
    return level, part
  end
  local missing = (room - level) * period - part
  local rest = missing % tokens
  local filled_in = (missing - rest) / tokens
  if rest > 0 then
    filled_in = filled_in + 1
  end
  if elapsed >= filled_in then --@10
    return room, 0
  end
  local earned = elapsed * tokens + part --@11
  rest = earned % period
  return level + (earned - rest) / period, rest
end

local present = (now - now % GENERATION) / GENERATION
local outstanding = lent_now + lent_before
if present > generation + 1 then
  local death = (generation + 2) * GENERATION --@12
  level_b, part_b = refill(level_b, part_b, capacity_b, tokens_b, period_b, outstanding, death - at)
  level_b, part_b = refill(level_b, part_b, capacity_b, tokens_b, period_b, 0, now - death)
  if capacity_s > 0 then
    level_s, part_s =
      refill(level_s, part_s, capacity_s, tokens_s, period_s, outstanding, death - at)
    level_s, part_s = refill(level_s, part_s, capacity_s, tokens_s, period_s, 0, now - death)
  end
  lent_now, lent_before = 0, 0
  generation = present
else
  level_b, part_b = refill(level_b, part_b, capacity_b, tokens_b, period_b, outstanding, now - at)
  if capacity_s > 0 then
    level_s, part_s =
      refill(level_s, part_s, capacity_s, tokens_s, period_s, outstanding, now - at)
  end
  if present == generation + 1 then
    lent_now, lent_before = 0, lent_now --@13
    generation = present
  end
end
at = now

-- a newer plan keeps what was used
if ask_version > version then
  local function adopt(level, part, capacity, tokens, period, capacity0, tokens0, period0)
    if capacity == 0 then --@14
      return 0, 0
    end
    if capacity > capacity0 then
      level = level + (capacity - capacity0) --@15
    else
      level = min(level, capacity) --@16
    end
    if tokens ~= tokens0 or period ~= period0 then
      part = 0 --@17
    end
    return max(level, 0 - debt_floor(capacity, tokens, period)), part
  end
  level_b, part_b = adopt(level_b, part_b, ask_capacity_b, ask_tokens_b, ask_period_b,
    capacity_b, tokens_b, period_b)
  level_s, part_s = adopt(level_s, part_s, ask_capacity_s, ask_tokens_s, ask_period_s,
    capacity_s, tokens_s, period_s)
  capacity_b, tokens_b, period_b = ask_capacity_b, ask_tokens_b, ask_period_b
  capacity_s, tokens_s, period_s = ask_capacity_s, ask_tokens_s, ask_period_s
  if version < reset then
    outstanding = lent_now + lent_before
    if level_b < capacity_b - outstanding then
      level_b, part_b = capacity_b - outstanding, 0 --@18
    end
    if capacity_s > 0 and level_s < capacity_s - outstanding then
      level_s, part_s = capacity_s - outstanding, 0 --@19
    end
  end
  version = ask_version
  changed = true
end

-- lost writes are rebuilt from what callers remember
if has_witness and (number(arg[27]) or 0) == version then
  local seen_total, seen_incarnation = number(arg[25]) or 0, number(arg[26]) or 0
  if found > 0 or forced or seen_incarnation ~= incarnation or seen_total > total then
    local elapsed = max(0, now - (number(arg[22]) or 0)) --@20
    local function bound(level, seen_level, capacity, tokens, period)
      local debt = debt_floor(capacity, tokens, period)
      local earned = capacity + debt
      if tokens == 0 or elapsed <= ((EXACT - 1) - (EXACT - 1) % tokens) / tokens then
        local parts = elapsed * tokens --@21
        earned = min(earned, (parts - parts % period) / period + 1)
      end
      return max(seen_level + earned, 0 - debt)
    end
    local most = bound(level_b, number(arg[23]) or 0, capacity_b, tokens_b, period_b)
    if level_b > most then
      level_b, part_b, changed = most, 0, true --@22
    end
    if capacity_s > 0 then
      most = bound(level_s, number(arg[24]) or 0, capacity_s, tokens_s, period_s)
      if level_s > most then
        level_s, part_s, changed = most, 0, true --@23
      end
    end
    if seen_incarnation > incarnation
      or (seen_incarnation == incarnation and seen_total > total)
    then
      incarnation = seen_incarnation + 1 --@24
      total = max(total, seen_total)
      changed = true
    end
  end
end

-- settle the lease: off the books, then back what is held or returned, within the room left
local held, back, dead = 0, unused, 0
if has_lease then
  local lease_generation, counted = number(arg[18]) or 0, number(arg[19]) or 0
  local live = true
  if lease_generation == generation then
    lent_now = lent_now - min(counted, lent_now) --@25
  elseif lease_generation + 1 == generation then
    lent_before = lent_before - min(counted, lent_before) --@26
  else
    live, dead = false, 1 --@27
  end
  if live then
    held = number(arg[20]) or 0
    back = back + (number(arg[21]) or 0)
    changed = changed or counted > 0 or held > 0
  end
end
outstanding = lent_now + lent_before
if changed or back > 0 or outstanding + held > 0 then
  local function settle(level, part, room)
    local settled = level + back
    if settled >= room then
      settled, part = room, 0 --@28
    end
    if settled < level then
      settled = max(settled, min(level, 0)) --@29
    end
    return settled, part
  end
  level_b, part_b = settle(level_b, part_b, capacity_b - outstanding - held)
  if capacity_s > 0 then
    level_s, part_s = settle(level_s, part_s, capacity_s - outstanding - held)
  end
  changed = changed or back > 0
end

-- what was admitted without the store
if owed_b > 0 or owed_s > 0 then
  changed = true
  if owed_b > 0 then
    local lowest = min(0 - debt_floor(capacity_b, tokens_b, period_b), level_b)
    level_b = max(level_b - owed_b, lowest) --@30
  end
  if owed_s > 0 and capacity_s > 0 then
    local lowest = min(0 - debt_floor(capacity_s, tokens_s, period_s), level_s)
    level_s = max(level_s - owed_s, lowest) --@31
  end
end

-- grant
local available = level_b
if capacity_s > 0 and level_s < available then
  available = level_s --@32
end
if available < 0 then
  available = 0 --@33
end
local granted = 0
if available >= smallest then
  granted = need < available and need or available --@34
end

-- lend
local lent = 0
if demand > 0 then
  -- 25 ms of refill, but between a tenth and a quarter of the capacity; nil if it does not pay
  local function lendable(capacity, tokens, period)
    if tokens == 0 or capacity * period < 50000 * tokens then --@35
      return nil
    end
    local earned = 25000 * tokens
    return max((capacity - capacity % 10) / 10,
      min((capacity - capacity % 4) / 4, (earned - earned % period) / period))
  end
  local most = lendable(capacity_b, tokens_b, period_b)
  if capacity_s > 0 then
    local most_s = lendable(capacity_s, tokens_s, period_s)
    most = most and most_s and min(most, most_s)
  end
  if most then
    local rest = available - granted
    local wanted = low_water - held
    if 4 * (level_b - granted) >= capacity_b
      and (capacity_s == 0 or 4 * (level_s - granted) >= capacity_s)
    then
      local half = rest - 5 * outstanding + 9 --@36
      wanted = wanted + max((demand - demand % 10) / 10, min(demand, 4))
      lent = min(wanted, most - outstanding, (half - half % 10) / 10)
    else
      local small = demand % 1000000 --@37
      local parts = small * scarce_poll
      wanted = wanted + (demand - small) / 1000000 * scarce_poll
        + (parts - parts % 1000000) / 1000000
      lent = min(wanted, rest, most - outstanding)
    end
    lent = max(0, min(lent, 4294967295 - held)) --@38
  end
end

local taken = granted + lent
level_b = level_b - taken
if capacity_s > 0 then
  level_s = level_s - taken
end
lent_now = lent_now + held + lent
if total > EXACT - 1 - taken then
  total, incarnation = 0, incarnation + 1 --@44
end
total = total + taken

-- check, write, reply
local keep = -1
if (changed or taken > 0) and not peek then
  if not sound(at, level_b, part_b, lent_now, lent_before, total, incarnation, version,
      capacity_b, tokens_b, period_b, level_s, part_s, capacity_s, tokens_s, period_s) then
    return redis.error_reply('WEIRSTATE the new state would not be readable')
  end
  local function fill_ms(level, part, capacity, tokens, period)
    if level >= capacity then --@39
      return 0
    elseif tokens == 0 then --@40
      return 2678400000
    end
    local missing = (capacity - level) * period - part
    local rest = missing % tokens
    local us = (missing - rest) / tokens
    if rest > 0 then
      us = us + 1
    end
    rest = us % 1000
    return rest > 0 and (us - rest) / 1000 + 1 or us / 1000
  end
  keep = fill_ms(level_b, part_b, capacity_b, tokens_b, period_b)
  local packed
  if capacity_s > 0 then
    keep = max(keep, fill_ms(level_s, part_s, capacity_s, tokens_s, period_s)) --@41
    packed = struct.pack('<Bdddddddddddddddd', 2, at, level_b, part_b, lent_now, lent_before,
      total, incarnation, version, capacity_b, tokens_b, period_b,
      level_s, part_s, capacity_s, tokens_s, period_s)
  else
    packed = struct.pack('<Bddddddddddd', 1, at, level_b, part_b, lent_now, lent_before,
      total, incarnation, version, capacity_b, tokens_b, period_b) --@42
  end
  keep = keep + 2 * GENERATION / 1000 + 250
  redis.call('SET', KEYS[1], packed, 'PX', string.format('%.0f', keep))
end
local reply = {
  granted, lent, dead, level_b, part_b, level_s, part_s, lent_now + lent_before, now, total,
  incarnation, found, version,
}
if version ~= ask_version
  or capacity_b ~= ask_capacity_b or tokens_b ~= ask_tokens_b or period_b ~= ask_period_b
  or capacity_s ~= ask_capacity_s or tokens_s ~= ask_tokens_s or period_s ~= ask_period_s
then
  reply[14], reply[15], reply[16] = capacity_b, tokens_b, period_b --@43
  reply[17], reply[18], reply[19] = capacity_s, tokens_s, period_s
end
return reply --=end
