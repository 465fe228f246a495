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
pub const FAULTS: [Fault; 16] = [
    Fault {
        name: "no-cap",
        changes: &[
            ("local room = capacity - outstanding", "local room = capacity"),
            ("capacity_b - outstanding - held)", "capacity_b)"),
            ("capacity_s - outstanding - held)", "capacity_s)"),
        ],
    },
    Fault {
        name: "settle-before-refill",
        changes: &[(
            "local outstanding = lent_now + lent_before",
            "local outstanding = max(0, lent_now + lent_before - (number(arg[19]) or 0))",
        )],
    },
    Fault {
        name: "skip-settle",
        changes: &[("lent_now = lent_now - min(counted, lent_now)", "lent_now = lent_now")],
    },
    Fault {
        name: "float-levels",
        changes: &[("level + (earned - rest) / period, rest", "level + earned / period, 0")],
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
        changes: &[(
            "(parts - parts % period) / period + 1)",
            "(parts - parts % period) / period)",
        )],
    },
    Fault {
        name: "debt-without-floor",
        changes: &[("level_b = max(level_b - owed_b, lowest)", "level_b = level_b - owed_b")],
    },
    Fault {
        name: "denials-write",
        changes: &[("if (changed or taken > 0) and not peek then", "if not peek then")],
    },
    Fault {
        name: "generation-forgets",
        changes: &[(
            "lent_now, lent_before = 0, lent_now --@13",
            "lent_now, lent_before = 0, 0 --@13",
        )],
    },
    Fault {
        name: "last-token-kept",
        changes: &[("if available >= smallest then", "if available > smallest then")],
    },
    Fault {
        name: "dead-lease-lives",
        changes: &[("live, dead = false, 1", "live, dead = true, 1")],
    },
    Fault { name: "partial-debit", changes: &[("level_s = level_s - taken", "level_s = level_s")] },
    Fault {
        name: "unreadable-is-full-for-ever",
        changes: &[("local changed = found == 2", "local changed = false")],
    },
];
