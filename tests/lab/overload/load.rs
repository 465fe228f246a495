//! Requests as cheap as they can be made: bytes that stand ready, over plain connections, of whose
//! answers only the status and the length are read. In a closed loop (each connection asks again
//! when it has its answer) or in an open one (at moments that chance has fixed beforehand).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use demo::ID_HEADER;
use system_tests::oracle::float;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// A request that takes longer is given up.
const GIVE_UP: Duration = Duration::from_secs(10);
/// After the last moment nothing is sent that is later than this.
const LATE_MAX: Duration = Duration::from_millis(50);
const ID_DIGITS: usize = 16;

/// Unique in a run.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A request, but for its id.
#[derive(Debug, Clone)]
pub struct Form {
    bytes: Vec<u8>,
    id_at: usize,
    /// A connection serves many requests.
    pub keep: bool,
}

impl Form {
    /// GET `path` with this API key.
    pub fn new(path: &str, key: &str) -> Form {
        let before = format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-api-key: {key}\r\n{ID_HEADER}: ");
        let id_at = before.len();
        let text = format!("{before}{:0ID_DIGITS$}\r\n\r\n", 0);
        Form { bytes: text.into_bytes(), id_at, keep: true }
    }

    fn with(&self, id: u64, into: &mut Vec<u8>) {
        into.clear();
        into.extend_from_slice(&self.bytes);
        let digits = format!("{id:0ID_DIGITS$}");
        if let Some(place) = into.get_mut(self.id_at..self.id_at + ID_DIGITS) {
            place.copy_from_slice(digits.as_bytes());
        }
    }
}

/// One request and its answer.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// Unique in this run.
    pub id: u64,
    /// When it was to be sent, from the beginning.
    pub at: Duration,
    /// How much later it was sent.
    pub late: Duration,
    /// From the moment when it was to be sent to the end of the answer.
    pub took: Duration,
    /// HTTP status; 0 if there was no answer.
    pub status: u16,
}

/// A connection, or none at the moment.
struct Line {
    to: SocketAddr,
    stream: Option<TcpStream>,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Line {
    fn new(to: SocketAddr) -> Line {
        Line { to, stream: None, request: Vec::new(), answer: Vec::with_capacity(4_096) }
    }

    async fn connect(&mut self) -> std::io::Result<&mut TcpStream> {
        let stream = TcpStream::connect(self.to).await?;
        stream.set_nodelay(true)?;
        Ok(self.stream.insert(stream))
    }

    /// The status of the answer; 0 if there is none.
    async fn ask(&mut self, form: &Form, id: u64) -> u16 {
        form.with(id, &mut self.request);
        let asked = timeout(GIVE_UP, self.exchange()).await;
        let status = asked.ok().and_then(Result::ok);
        if status.is_none() || !form.keep {
            self.stream = None;
        }
        status.unwrap_or(0)
    }

    async fn exchange(&mut self) -> anyhow::Result<u16> {
        if self.stream.is_none() {
            self.connect().await?;
        }
        let stream = self.stream.as_mut().context("a connection")?;
        stream.write_all(&self.request).await?;
        self.answer.clear();
        loop {
            let count = stream.read_buf(&mut self.answer).await?;
            anyhow::ensure!(count > 0, "closed");
            if let Some(status) = whole(&self.answer)? {
                return Ok(status);
            }
        }
    }
}

/// The status of an answer that is there to its last byte.
fn whole(answer: &[u8]) -> anyhow::Result<Option<u16>> {
    const END: &[u8] = b"\r\n\r\n";
    let Some(end) = answer.windows(END.len()).position(|window| window == END) else {
        return Ok(None);
    };
    let head = std::str::from_utf8(answer.get(..end).unwrap_or_default())?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("a status")?;
    let length = lines.find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.context("content-length")?.parse()?;
    Ok(if end + END.len() + length <= answer.len() { Some(status.parse()?) } else { None })
}

/// Asks over `connections`, each as soon as it has its answer, for `length`.
pub async fn closed(
    to: SocketAddr,
    form: &Form,
    connections: usize,
    length: Duration,
) -> anyhow::Result<Vec<Asked>> {
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        let form = form.clone();
        tasks.spawn(async move {
            let (mut line, mut all) = (Line::new(to), Vec::new());
            while begin.elapsed() < length {
                let (id, sent) = (NEXT_ID.fetch_add(1, Ordering::Relaxed), Instant::now());
                let status = line.ask(&form, id).await;
                let (at, took) = (sent.duration_since(begin), sent.elapsed());
                all.push(Asked { id, at, late: Duration::ZERO, took, status });
            }
            all
        });
    }
    gather(tasks).await
}

/// Asks at moments of a Poisson process with this rate, for `length`, over as many connections,
/// opened before. What had to wait for a connection is late; what waited to the end is never sent.
pub async fn open(
    to: SocketAddr,
    form: &Form,
    per_s: f64,
    length: Duration,
    connections: usize,
    seed: u64,
) -> anyhow::Result<(Vec<Asked>, Arc<Vec<Duration>>)> {
    let moments = Arc::new(moments(per_s, length, seed));
    let next = Arc::new(AtomicUsize::new(0));
    let mut lines = Vec::new();
    for _ in 0..connections {
        let mut line = Line::new(to);
        line.connect().await?;
        lines.push(line);
    }
    let begin = Instant::now() + LATE_MAX;
    let mut tasks = JoinSet::new();
    for mut line in lines {
        let (form, moments, next) = (form.clone(), Arc::clone(&moments), Arc::clone(&next));
        tasks.spawn(async move {
            let mut all = Vec::new();
            while let Some(at) = moments.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
                let moment = begin + at;
                sleep_until(moment).await;
                let late = moment.elapsed();
                if length + LATE_MAX < begin.elapsed() {
                    break;
                }
                let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
                let status = line.ask(&form, id).await;
                all.push(Asked { id, at, late, took: moment.elapsed(), status });
            }
            all
        });
    }
    Ok((gather(tasks).await?, moments))
}

async fn gather(mut tasks: JoinSet<Vec<Asked>>) -> anyhow::Result<Vec<Asked>> {
    let mut all = Vec::new();
    while let Some(done) = tasks.join_next().await {
        all.extend(done?);
    }
    Ok(all)
}

fn moments(per_s: f64, length: Duration, seed: u64) -> Vec<Duration> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut at, end, mut all) = (0.0, length.as_secs_f64(), Vec::new());
    loop {
        at -= (1.0 - random.f64()).ln() / per_s;
        if end <= at {
            return all;
        }
        all.push(Duration::from_secs_f64(at));
    }
}

/// Share of the intended requests, from `onset` on, that were sent in time.
pub fn offered(all: &[Asked], moments: &[Duration], onset: Duration) -> f64 {
    let intended = moments.iter().filter(|moment| onset <= **moment).count();
    let in_time = |asked: &&Asked| onset <= asked.at && asked.late <= LATE_MAX;
    float(all.iter().filter(in_time).count()) / float(intended.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_with_its_last_byte() {
        let answer = b"HTTP/1.1 503 Service Unavailable\r\nx: y\r\ncontent-length: 3\r\n\r\nabc";
        assert_eq!(whole(answer).unwrap(), Some(503));
        for short in 0..answer.len() {
            assert_eq!(whole(&answer[..short]).unwrap(), None, "{short}");
        }
        assert!(whole(b"HTTP/1.1 200 OK\r\n\r\n").is_err(), "its end cannot be known");
    }

    #[test]
    fn ids_stand_in_their_place() {
        let form = Form::new("/light", "k");
        let mut request = Vec::new();
        form.with(42, &mut request);
        let text = String::from_utf8(request).unwrap();
        assert!(text.ends_with("\r\nx-demo-id: 0000000000000042\r\n\r\n"), "{text}");
    }

    #[test]
    fn moments_come_as_often_as_wanted_and_by_chance() {
        let all = moments(1_000.0, Duration::from_secs(10), 3);
        assert!(all.is_sorted() && (9_400..10_600).contains(&all.len()), "{}", all.len());
        let gaps = all.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        let long = gaps.filter(|gap| *gap > Duration::from_millis(1)).count();
        assert!((3_300..4_100).contains(&long), "{long} of 3,679 or so");
    }
}
