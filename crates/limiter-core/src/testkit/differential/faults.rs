//! Faults to plant in the script. A differential test that does not find them proves nothing.

/// One textual change of the script.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Its name on the command line.
    pub name: &'static str,
    /// Texts that occur exactly once in the script, and what takes their place.
    pub(super) changes: &'static [(&'static str, &'static str)],
}

impl Fault {
    /// The fault of that name.
    pub fn named(name: &str) -> Option<&'static Fault> {
        FAULTS.iter().find(|fault| fault.name == name)
    }
}

/// Every fault that is planted; each is one plausible mistake.
pub const FAULTS: [Fault; 20] = [
    Fault {
        name: "no-cap",
        changes: &[
            ("local room = capacity_b - outstanding", "local room = capacity_b"),
            ("    room = capacity_s - outstanding", "    room = capacity_s"),
            ("capacity_b - outstanding - held)", "capacity_b)"),
            ("capacity_s - outstanding - held)", "capacity_s)"),
        ],
    },
    Fault {
        name: "settle-before-refill",
        changes: &[(
            "local outstanding = lent_now + lent_before",
            "local outstanding = math.max(0, lent_now + lent_before - (counted or 0))",
        )],
    },
    Fault {
        name: "skip-settle",
        changes: &[("counted < lent_now and lent_now - counted or 0", "lent_now")],
    },
    Fault {
        name: "float-levels",
        changes: &[(
            "level_b = level_b + (earned - part_b) / period_b",
            "level_b = level_b + earned / period_b",
        )],
    },
    Fault { name: "floor-for-ceil", changes: &[("us = us + 1", "us = us")] },
    Fault { name: "time-runs-back", changes: &[("if now < at then", "if now < at - 3600e6 then")] },
    Fault {
        name: "seconds-for-milliseconds",
        changes: &[("rest = us % 1000\n", "us = (us - us % 1000) / 1000\n    rest = us % 1000\n")],
    },
    Fault {
        name: "upgrade-gives-no-room",
        changes: &[("level = level + (capacity - capacity0)", "level = level")],
    },
    Fault {
        name: "witness-one-short",
        changes: &[("(parts - parts % period) / period + 1", "(parts - parts % period) / period")],
    },
    Fault {
        name: "debt-without-floor",
        changes: &[(
            "return level - owed > lowest and level - owed or lowest",
            "return level - owed",
        )],
    },
    Fault {
        name: "denials-write",
        changes: &[("if (changed or taken > 0) and flags % 2 == 0 then", "if flags % 2 == 0 then")],
    },
    Fault {
        name: "generation-forgets",
        changes: &[("present == generation + 1 and lent_now or 0", "0")],
    },
    Fault {
        name: "dead-tokens-do-not-cap",
        changes: &[("if outstanding > 0 and present > generation + 1 then", "if false then")],
    },
    Fault {
        name: "last-token-kept",
        changes: &[("if available >= smallest then", "if available > smallest then")],
    },
    Fault { name: "dead-lease-lives", changes: &[("held, returned, dead = 0, 0, 4", "dead = 4")] },
    Fault { name: "partial-debit", changes: &[("level_s = level_s - taken", "level_s = level_s")] },
    Fault {
        name: "unreadable-is-full-for-ever",
        changes: &[("local changed, rewrite = found == 2", "local changed, rewrite = false")],
    },
    Fault {
        name: "lifetime-of-one-bucket",
        changes: &[("(capacity_s == 0 or left * tokens_s >=", "(true or left * tokens_s >=")],
    },
    Fault {
        name: "lifetime-from-frozen-time",
        changes: &[("    local tail\n", "    local tail\n    clock = now\n")],
    },
    Fault {
        name: "old-plan-stays-stored",
        changes: &[("changed, rewrite = true, true", "changed = true")],
    },
];
