-- Refills, settles and debits one bucket pair, atomically. The same function as bucket.rs, step by
-- step and number by number: change both together, the differential test compares them.
--
-- KEYS[1]  the bucket pair, one string
-- ARGV[1]  the call, little endian: a byte of flags (1 peek, 2 the witness is forced), doubles that
--          hold whole numbers: 11 of them; 18 if it is about leases; 26 if it is about losses; then
--          two bytes that the reply repeats
--    11    plan: version; burst capacity, tokens, period in us; the same of the sustained bucket or
--          three zeros; most tokens lent. Need, smallest need, plan version of the last reset
--    +7    wanted in the lease while tokens are plenty (0: no lease) and while they are scarce;
--          unused need; lease: generation (-1: none), counted, held, returned
--    +8    owed: burst, sustained; witness: plan version (-1: none), at, burst level, sustained
--          level, granted total, incarnation
-- State    91 bytes, or 120 with a sustained bucket, little endian integers of these widths; its
--          head is the last reply, so that one packed text is both stored and sent
--    head  granted 5, lent 4, kind 1 (16, or 32 with a sustained bucket; + found; + 4 if the lease
--          was dead), at 7, burst level 6 (signed) and part 7, lent now 6 and before 6, granted
--          total 7, incarnation 7 [, sustained level 6 and part 7]
--    tail  expires 7 (the key lives a quarter of a second longer), plan version 7, burst
--          capacity 5, tokens 4, period 7, most lent 5 [, sustained capacity 5, tokens 4, period 7]
-- Reply    the head; found is 0 known, 1 nothing, 2 unreadable. If the plan in force is not the
--          caller's, the tail without its first number follows
--
-- Order: compute, check, write. The write is the last thing that can fail, so no error follows a
-- debit. What is stored is input: anything that cannot be a bucket counts as missing and is
-- overwritten. It is read as integers: no fraction, no infinity has to be looked for.
-- Every dividend stays below 2^53, so doubles are exact and so is %. A product may be larger where
-- it is only compared with a number that is not: rounding keeps the order.
--
-- What a call costs is its texts (arguments, replies: one each) and its three commands; then the
-- number of operations. While the lifetime of the key covers the time to full, the head alone is
-- written, in place, and the lifetime stays as it is.
--
-- Marks at line ends (an at sign and a number) are comments here; the differential test turns them
-- into counters of visited branches. Names end in _b for the burst bucket, in _s for the other.
local EXACT = 9007199254740992
local LENT_MAX = 281474976710655
local GENERATION = 500000
local redis, unpack, pack = redis, struct.unpack, struct.pack

-- how far below zero a level may be: one second of refill
local function debt_floor(capacity, tokens, period)
  local earned = tokens * 1000000
  local rest = earned % period
  earned = rest > 0 and (earned - rest) / period + 1 or earned / period
  return earned < capacity and earned or capacity
end

-- the call; unpack's last result is a position, where a number is missing
local arg, key = ARGV[1] or '', KEYS[1]
local size = #arg
local form = size == 91 and '<Bddddddddddd' or size == 147 and '<Bdddddddddddddddddd'
  or size == 211 and '<Bdddddddddddddddddddddddddd'
if not form then
  return redis.error_reply('WEIRARGUMENT not a call')
end
local flags, ask_version, ask_capacity_b, ask_tokens_b, ask_period_b,
  ask_capacity_s, ask_tokens_s, ask_period_s, ask_most, need, smallest, reset,
  plenty, scarce, unused, lease_generation, counted, held, returned,
  owed_b, owed_s, seen_version, seen_at, seen_b, seen_s, seen_total, seen_incarnation =
  unpack(form, arg)
if size < 211 then
  owed_b, owed_s, seen_version = 0, 0, -1
  if size < 147 then
    plenty, unused, lease_generation = 0, 0, -1
  end
end

local time = redis.call('TIME') --=clock
local clock = time[1] * 1000000 + time[2]
local now = clock

-- the state in force
local kind, at, level_b, part_b, lent_now, lent_before, total, incarnation, expires, version
local capacity_b, tokens_b, period_b, most
local level_s, part_s, capacity_s, tokens_s, period_s = 0, 0, 0, 0, 0
local found, same_plan = 1, true
local raw = redis.pcall('GET', key)
if raw then
  found = 2
  if #raw == 91 then
    kind, at, level_b, part_b, lent_now, lent_before, total, incarnation,
      expires, version, capacity_b, tokens_b, period_b, most =
      unpack('<BI7i6I7I6I6I7I7I7I7I5I4I7I5', raw, 10)
    if kind >= 16 and kind < 32 then found = 0 end --@1
  elseif #raw == 120 then
    kind, at, level_b, part_b, lent_now, lent_before, total, incarnation, level_s, part_s,
      expires, version, capacity_b, tokens_b, period_b, most, capacity_s, tokens_s, period_s =
      unpack('<BI7i6I7I6I6I7I7i6I7I7I7I5I4I7I5I5I4I7', raw, 10)
    if kind >= 32 and kind < 48 and capacity_s > 0 then found = 0 end --@2
  elseif raw.err and not string.find(raw.err, 'WRONGTYPE', 1, true) then
    return raw
  end
  if found == 0 then
    same_plan = version == ask_version
      and capacity_b == ask_capacity_b and tokens_b == ask_tokens_b and period_b == ask_period_b
      and capacity_s == ask_capacity_s and tokens_s == ask_tokens_s and period_s == ask_period_s
      and most == ask_most
    if not same_plan then
      local function sound(capacity, tokens, period)
        return capacity > 0 and capacity <= 1000000000000 and most <= capacity
          and tokens <= 1000000000 and tokens * 1000000 <= 1000000000 * period
          and period > 0 and (tokens > 0 or period == 1)
          and (2 * capacity * period < EXACT
            or (capacity + debt_floor(capacity, tokens, period)) * period < EXACT)
      end
      if not (version < EXACT and sound(capacity_b, tokens_b, period_b)
        and (capacity_s == 0 or sound(capacity_s, tokens_s, period_s)))
      then
        found = 2 --@3
      end
    end
    if not (at < EXACT and total < EXACT and incarnation < EXACT
      and level_b <= capacity_b and part_b < period_b
      and (level_b >= 0 or level_b >= 0 - debt_floor(capacity_b, tokens_b, period_b))
      and (capacity_s == 0 or level_s <= capacity_s and part_s < period_s
        and (level_s >= 0 or level_s >= 0 - debt_floor(capacity_s, tokens_s, period_s))))
    then
      found = 2 --@4
    end
  end
end
if found > 0 then
  at, lent_now, lent_before, total, incarnation = now, 0, 0, 0, now --@5
  level_b, part_b, level_s, part_s = ask_capacity_b, 0, ask_capacity_s, 0
  version, most, same_plan = ask_version, ask_most, true
  capacity_b, tokens_b, period_b = ask_capacity_b, ask_tokens_b, ask_period_b
  capacity_s, tokens_s, period_s = ask_capacity_s, ask_tokens_s, ask_period_s
end
local changed, rewrite = found == 2, found > 0

-- store time never runs back: a little is frozen, a lot rebases the bucket
local generation = (at - at % GENERATION) / GENERATION
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

-- refill up to capacity - outstanding, under what was outstanding before settlement; tokens of dead
-- generations first cap the refill until their end, then no more
local outstanding = lent_now + lent_before
local present = (now - now % GENERATION) / GENERATION
repeat
  local till = now
  if outstanding > 0 and present > generation + 1 then
    till = (generation + 2) * GENERATION --@8
  end
  local room = capacity_b - outstanding
  if level_b >= room then
    part_b = 0 --@9
  else
    local earned = (till - at) * tokens_b + part_b
    if earned >= (room - level_b) * period_b then
      level_b, part_b = room, 0 --@10
    else
      part_b = earned % period_b --@11
      level_b = level_b + (earned - part_b) / period_b
    end
  end
  if capacity_s > 0 then
    room = capacity_s - outstanding
    if level_s >= room then
      part_s = 0 --@12
    else
      local earned = (till - at) * tokens_s + part_s
      if earned >= (room - level_s) * period_s then
        level_s, part_s = room, 0 --@13
      else
        part_s = earned % period_s --@14
        level_s = level_s + (earned - part_s) / period_s
      end
    end
  end
  at = till
  if present > generation then
    lent_now, lent_before = 0, present == generation + 1 and lent_now or 0 --@15
    outstanding = 0
    generation = present
  end
until at == now

-- a newer plan keeps what was used
if ask_version > version then
  local function adopt(level, part, capacity, tokens, period, capacity0, tokens0, period0)
    if capacity == 0 then --@16
      return 0, 0
    end
    if capacity > capacity0 then
      level = level + (capacity - capacity0) --@17
    elseif level > capacity then
      level = capacity --@18
    end
    if tokens ~= tokens0 or period ~= period0 then
      part = 0 --@19
    end
    local lowest = 0 - debt_floor(capacity, tokens, period)
    return level < lowest and lowest or level, part
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
      level_b, part_b = capacity_b - outstanding, 0 --@20
    end
    if capacity_s > 0 and level_s < capacity_s - outstanding then
      level_s, part_s = capacity_s - outstanding, 0 --@21
    end
  end
  version, most, same_plan = ask_version, ask_most, true
  changed, rewrite = true, true
end

-- lost writes are rebuilt from what callers remember
if seen_version == version
  and (found > 0 or flags >= 2 or seen_incarnation ~= incarnation or seen_total > total)
then
  local elapsed = now > seen_at and now - seen_at or 0 --@22
  local function bound(seen_level, capacity, tokens, period)
    local debt = debt_floor(capacity, tokens, period)
    local earned = capacity + debt
    if tokens == 0 or elapsed <= ((EXACT - 1) - (EXACT - 1) % tokens) / tokens then
      local parts = elapsed * tokens --@23
      parts = (parts - parts % period) / period + 1
      earned = parts < earned and parts or earned
    end
    return math.max(seen_level + earned, 0 - debt)
  end
  local highest = bound(seen_b, capacity_b, tokens_b, period_b)
  if level_b > highest then
    level_b, part_b, changed = highest, 0, true --@24
  end
  if capacity_s > 0 then
    highest = bound(seen_s, capacity_s, tokens_s, period_s)
    if level_s > highest then
      level_s, part_s, changed = highest, 0, true --@25
    end
  end
  if seen_incarnation > incarnation or (seen_incarnation == incarnation and seen_total > total) then
    incarnation = seen_incarnation + 1 --@26
    total = total > seen_total and total or seen_total
    changed = true
  end
end

-- settle the lease: off the books, then back what is held or returned, within the room left
local back, dead = unused, 0
if lease_generation >= 0 then
  if lease_generation == present then
    lent_now = counted < lent_now and lent_now - counted or 0 --@27
  elseif lease_generation + 1 == present then
    lent_before = counted < lent_before and lent_before - counted or 0 --@28
  else
    held, returned, dead = 0, 0, 4 --@29
  end
  if dead == 0 then
    back = back + returned
    changed = changed or counted > 0 or held > 0
  end
else
  held = 0
end
outstanding = lent_now + lent_before
if changed or back > 0 or outstanding > 0 then
  local function settle(level, part, room)
    local settled = level + back
    if settled >= room then
      settled, part = room, 0 --@30
      if settled < level then
        local kept = level < 0 and level or 0 --@31
        settled = settled > kept and settled or kept
      end
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
  local function charge(level, owed, capacity, tokens, period)
    local lowest = 0 - debt_floor(capacity, tokens, period)
    lowest = level < lowest and level or lowest
    return level - owed > lowest and level - owed or lowest
  end
  changed = true
  if owed_b > 0 then
    level_b = charge(level_b, owed_b, capacity_b, tokens_b, period_b) --@32
  end
  if owed_s > 0 and capacity_s > 0 then
    level_s = charge(level_s, owed_s, capacity_s, tokens_s, period_s) --@33
  end
end

-- grant
local available = level_b
if capacity_s > 0 and level_s < available then
  available = level_s --@34
end
if available < 0 then
  available = 0 --@35
end
local granted = 0
if available >= smallest then
  granted = need < available and need or available --@36
end

-- lend: half of what is left of a tenth of the capacity while tokens are plenty
local lent = 0
if plenty > 0 then
  lent = most - outstanding
  local wanted, rest = plenty, available - granted
  if 4 * (level_b - granted) >= capacity_b
    and (capacity_s == 0 or 4 * (level_s - granted) >= capacity_s)
  then
    rest = rest - 5 * outstanding + 9 --@37
    rest = (rest - rest % 10) / 10
  else
    wanted = scarce --@38
  end
  wanted = wanted - held
  if wanted < lent then
    lent = wanted --@39
  end
  if rest < lent then
    lent = rest --@40
  end
  if lent > 4294967295 - held then
    lent = 4294967295 - held
  end
  if lent < 0 then
    lent = 0 --@41
  end
end

local taken = granted + lent
level_b = level_b - taken
if capacity_s > 0 then
  level_s = level_s - taken
end
lent_now = lent_now + held + lent
if total > EXACT - 1 - taken then
  total, incarnation = 0, incarnation + 1 --@42
end
total = total + taken

-- reply
local reply
if capacity_s > 0 then
  reply = pack('<I5I4BI7i6I7I6I6I7I7i6I7', granted, lent, 32 + found + dead, now, level_b, part_b,
    lent_now, lent_before, total, incarnation, level_s, part_s) --@43
else
  reply = pack('<I5I4BI7i6I7I6I6I7I7', granted, lent, 16 + found + dead, now, level_b, part_b,
    lent_now, lent_before, total, incarnation) --@44
end

-- check, write
local keep = -1
if (changed or taken > 0) and flags % 2 == 0 then
  if not (level_b <= capacity_b and level_s <= capacity_s and lent_now <= LENT_MAX
    and total < EXACT and incarnation < EXACT)
  then
    return redis.error_reply('WEIRSTATE the new state would not be readable')
  end
  -- the time until both buckets are full, and while tokens are lent two generations more
  local held_up = lent_now + lent_before > 0 and 2 * GENERATION or 0
  local left = expires and expires - now - held_up
  if not rewrite and left * tokens_b >= (capacity_b - level_b) * period_b
    and (capacity_s == 0 or left * tokens_s >= (capacity_s - level_s) * period_s)
  then
    redis.call('SETRANGE', key, '0', reply) --@45
    keep = 0
  else
    local function fill_ms(level, part, capacity, tokens, period)
      if level >= capacity then --@46
        return 0
      elseif tokens == 0 then --@47
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
    keep = fill_ms(level_b, part_b, capacity_b, tokens_b, period_b) --@48
    if capacity_s > 0 then
      keep = math.max(keep, fill_ms(level_s, part_s, capacity_s, tokens_s, period_s))
    end
    -- a second more, and a quarter: then most calls to come find that the lifetime is enough
    keep = keep + held_up / 1000
    keep = keep + math.min((keep - keep % 4) / 4, 43200000) + 1000
    local tail
    if capacity_s > 0 then
      tail = pack('<I7I7I5I4I7I5I5I4I7', clock + keep * 1000, version,
        capacity_b, tokens_b, period_b, most, capacity_s, tokens_s, period_s)
    else
      tail = pack('<I7I7I5I4I7I5', clock + keep * 1000, version,
        capacity_b, tokens_b, period_b, most)
    end
    keep = keep + 250
    redis.call('SET', key, reply .. tail, 'PX', string.format('%.0f', keep))
  end
end
if not same_plan then
  if capacity_s > 0 then
    reply = reply .. pack('<I7I5I4I7I5I5I4I7', version, capacity_b, tokens_b, period_b, most,
      capacity_s, tokens_s, period_s) --@49
  else
    reply = reply .. pack('<I7I5I4I7I5', version, capacity_b, tokens_b, period_b, most) --@50
  end
end
reply = reply .. string.sub(arg, -2)
return reply --=end
