//! What the kernel says: the time that a process has had on a processor, the time that the machine
//! was taken away from us, and on which processor a process may run.

use std::time::Duration;

use anyhow::Context as _;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

/// Where the process under test runs, alone.
pub const SUBJECT_CORE: usize = 0;
/// Where everything else runs: callers, the service, Redis.
pub const LOAD_CORE: usize = 1;

/// Moves the calling thread, and what it starts from now on, to one core.
pub fn pin(core: usize) -> std::io::Result<()> {
    sched_setaffinity(None, &only(core)).map_err(Into::into)
}

/// Moves all threads of this process, and what they start from now on.
pub fn pin_all(core: usize) -> anyhow::Result<()> {
    for entry in std::fs::read_dir("/proc/self/task")? {
        let name = entry?.file_name();
        let id = name.to_string_lossy().parse::<i32>()?;
        let thread = Pid::from_raw(id).context("thread 0")?;
        // One that has ended meanwhile needs no place.
        if let Err(error) = sched_setaffinity(Some(thread), &only(core))
            && error != rustix::io::Errno::SRCH
        {
            return Err(error).with_context(|| format!("core {core} for thread {id}"));
        }
    }
    Ok(())
}

fn only(core: usize) -> CpuSet {
    let mut cores = CpuSet::new();
    cores.set(core);
    cores
}

/// The time that all threads of a process have had so far: user and system.
pub fn cpu_time(process: u32) -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name, in parentheses, may hold anything: what follows begins with field 3.
    let (_, fields) = stat.rsplit_once(')').context("/proc/…/stat without a name")?;
    let mut fields = fields.split_whitespace().skip(14 - 3);
    let mut next = || fields.next().and_then(|text| text.parse::<u64>().ok());
    let (user, system) = next().zip(next()).context("/proc/…/stat without times")?;
    Ok(ticks(user + system))
}

/// The time that another guest of the same host had instead of us, on all cores together.
pub fn stolen() -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    // user nice system idle iowait irq softirq steal: proc_stat(5).
    let steal = stat.lines().next().and_then(|line| line.split_whitespace().nth(8));
    Ok(ticks(steal.context("/proc/stat without steal")?.parse()?))
}

fn ticks(count: u64) -> Duration {
    Duration::from_millis(count * 1_000 / rustix::param::clock_ticks_per_second().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows_as_time_of_the_process_and_a_thread_can_be_pinned() {
        let before = cpu_time(std::process::id()).unwrap();
        let pinned = std::thread::spawn(|| {
            pin(0).unwrap();
            let mut sum = 0_u64;
            while cpu_time(std::process::id()).unwrap() < Duration::from_millis(50) {
                sum = std::hint::black_box(sum + 1);
            }
            rustix::thread::sched_getaffinity(None).unwrap().count()
        });
        assert_eq!(pinned.join().unwrap(), 1);
        assert!(before < cpu_time(std::process::id()).unwrap());
        assert!(stolen().is_ok());
    }
}
