//! An HTTP server that answers as it is told and remembers what it was asked: for answers that a
//! control plane gives only in a race, or only together with other parts.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::run::{Ran, command, finish};

/// Method and path (without the query), status, body.
type Answer = (&'static str, u16, Value);

/// A request that came.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// `PUT /v1/plans/p?reason=x`
    pub(crate) line: String,
    /// Names in lower case.
    pub(crate) head: String,
    pub(crate) body: Value,
}

pub(crate) struct Stub {
    addr: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Stub {
    pub(crate) fn addr(&self) -> &str {
        &self.addr
    }

    pub(crate) fn start(answers: Vec<Answer>) -> Stub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let remembered = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(&stream.unwrap(), &answers, &remembered);
            }
        });
        Stub { addr, asked }
    }

    pub(crate) fn weir(&self, args: &[&str]) -> Ran {
        let mut command = command(args);
        command.env("WEIR_ADDR", &self.addr).env("WEIR_TOKEN", "weiro_a_b");
        finish(command)
    }

    /// What came so far, whose line begins so.
    pub(crate) fn asked(&self, begins: &str) -> Vec<Asked> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|asked| asked.line.starts_with(begins)).cloned().collect()
    }
}

fn answer(stream: &TcpStream, answers: &[Answer], asked: &Mutex<Vec<Asked>>) {
    let mut from = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if from.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        if line.trim().is_empty() {
            break;
        }
        lines.push(line.trim().to_owned());
    }
    let head = lines[1..].join("\n").to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    from.read_exact(&mut body).unwrap();
    let line = lines[0].trim_end_matches(" HTTP/1.1").to_owned();
    let path = line.split('?').next().unwrap().to_owned();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    asked.lock().unwrap().push(Asked { line, head, body });
    let told = answers.iter().find(|(which, ..)| *which == path);
    let (status, body) = match told {
        Some((_, status, body)) => (*status, body.clone()),
        None => (404, problem("not_found", 404, &format!("nobody told the stub of {path}"))),
    };
    // a bare text is sent as it is: not everything is JSON
    let text = body.as_str().map_or_else(|| body.to_string(), str::to_owned);
    let length = text.len();
    let mut stream = stream;
    let _gone = write!(
        stream,
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{text}"
    );
}

/// A refusal.
pub(crate) fn problem(code: &str, status: u16, detail: &str) -> Value {
    serde_json::json!({
        "type": format!("urn:weir:problem:{code}"), "title": detail, "status": status,
        "code": code, "detail": detail,
    })
}
