-- The bucket as the design document publishes it, for comparison: a hash of two decimal numbers, the
-- time told by the caller, three commands a call. Known to be wrong where clocks overtake each
-- other and where decimals do not add up; only its cost matters here.
-- KEYS[1] the bucket    ARGV capacity, tokens a second, present in ms, cost
local capacity, rate = tonumber(ARGV[1]), tonumber(ARGV[2])
local present, cost = tonumber(ARGV[3]), tonumber(ARGV[4])
local stored = redis.call('HMGET', KEYS[1], 'tokens', 'ts')
local level, since = tonumber(stored[1]) or capacity, tonumber(stored[2]) or present
level = math.min(capacity, level + math.max(0, present - since) / 1000 * rate)
local allowed = cost <= level
if allowed then
  level = level - cost
end
redis.call('HMSET', KEYS[1], 'tokens', level, 'ts', present)
redis.call('PEXPIRE', KEYS[1], math.ceil(capacity / rate * 1000) + 1000)
return { allowed and 1 or 0, tostring(level) }
