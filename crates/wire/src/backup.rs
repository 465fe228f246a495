//! A backup as a file: one JSON document a line, the first says what it is, the last has the hash
//! of everything before it.
//!
//! ```text
//! {"weir_backup":1,"build":"0.1.0","made_at":…,"history":"…","revision":318,"pepper_id":"…","audit":{…}}
//! {"table":"plan","row":{"name":"pro","burst_capacity":100,…}}
//! …
//! {"end":{"rows":812,"hash":"…"}}
//! ```
//!
//! A row has its table's columns; bytes are hexadecimal digits. The hash is BLAKE3 of every byte
//! before the last line. It shows damage, not intent: whoever can write the file can make one that
//! is whole. [`Reader`] holds one line at most, so files may be of any length.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::audit::AuditHash;

/// The form that this build writes, and the newest that it reads.
pub const FORM: u64 = 1;
/// Longest line, in bytes: an object of 64 KiB twice, with every byte escaped.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupHead {
    /// The form of the file.
    pub weir_backup: u64,
    /// Build that made it.
    pub build: String,
    /// When, in milliseconds since 1970.
    pub made_at: u64,
    /// History of its revisions.
    pub history: String,
    /// The newest revision.
    pub revision: u64,
    /// The pepper that the hashes of its keys were made with.
    pub pepper_id: String,
    /// Where the audit stood.
    pub audit: AuditEnd,
}

/// Where an audit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEnd {
    /// Number of the newest row.
    pub seq: u64,
    /// How far the chain reaches.
    pub linked: u64,
    /// Hash of the newest row in the chain.
    pub hash: AuditHash,
}

/// A line in between.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackupRow {
    /// The table.
    pub table: String,
    /// Its columns.
    pub row: Map<String, Value>,
}

/// The last line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LastLine {
    end: BackupEnd,
}

/// What the last line tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupEnd {
    /// Rows between the first line and the last.
    pub rows: u64,
    /// BLAKE3 of all bytes before the last line, 64 hexadecimal digits.
    pub hash: String,
}

/// Why a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackupError {
    /// It never was one.
    #[error("this is no backup of Weir: its first line does not say so")]
    Foreign,
    /// A later build made it.
    #[error(
        "the backup has form {0}, this build reads up to form {FORM}: use the build that made it, or a later one"
    )]
    Newer(u64),
    /// Its end is missing.
    #[error("the backup is cut off: its last line is missing after {0} rows")]
    Cut(u64),
    /// It is not what was written.
    #[error("the backup is damaged: {0}")]
    Damaged(String),
}

/// Writes the lines and counts them.
#[derive(Debug, Default)]
pub struct Writer {
    hasher: blake3::Hasher,
    rows: u64,
}

impl Writer {
    /// The first line.
    pub fn head(&mut self, head: &BackupHead) -> Vec<u8> {
        let line = line_of(head);
        self.hasher.update(&line);
        line
    }

    /// A line in between.
    pub fn row(&mut self, row: &BackupRow) -> Vec<u8> {
        let line = line_of(row);
        self.hasher.update(&line);
        self.rows += 1;
        line
    }

    /// The last line.
    pub fn end(&self) -> Vec<u8> {
        let hash = self.hasher.finalize().to_hex().to_string();
        line_of(&LastLine { end: BackupEnd { rows: self.rows, hash } })
    }
}

fn line_of(value: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).expect("documents with text keys always serialise");
    line.push(b'\n');
    line
}

/// What a line was.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// The first.
    Head(BackupHead),
    /// One in between.
    Row(BackupRow),
    /// The last.
    End,
}

/// Reads a backup in pieces of any size, and trusts nothing in it before its end fits.
#[derive(Debug, Default)]
pub struct Reader {
    hasher: blake3::Hasher,
    /// The beginning of a line that is not whole yet.
    begun: Vec<u8>,
    head: Option<BackupHead>,
    rows: u64,
    ended: bool,
}

impl Reader {
    /// Takes the next piece and tells what lines it completes.
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<Line>, BackupError> {
        let mut lines = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            if LINE_BYTES_MAX < self.begun.len() + part.len() {
                return Err(match self.head {
                    None => BackupError::Foreign,
                    Some(_) => damaged(format!("line {} is too long", self.rows + 2)),
                });
            }
            self.begun.extend_from_slice(part);
            if self.begun.ends_with(b"\n") {
                let line = std::mem::take(&mut self.begun);
                lines.push(self.line(&line)?);
            }
        }
        Ok(lines)
    }

    /// The first line, once it is read.
    pub fn head(&self) -> Option<&BackupHead> {
        self.head.as_ref()
    }

    /// Nothing comes any more: is it whole? What it says of itself, and how many rows it has.
    pub fn finish(self) -> Result<(BackupHead, u64), BackupError> {
        match self.head {
            Some(head) if self.ended => match self.begun.is_empty() {
                true => Ok((head, self.rows)),
                false => Err(damaged("something follows its last line".to_owned())),
            },
            Some(_) => Err(BackupError::Cut(self.rows)),
            None if self.begun.starts_with(b"{\"weir_backup\":") => Err(BackupError::Cut(0)),
            None => Err(BackupError::Foreign),
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<Line, BackupError> {
        if self.ended {
            return Err(damaged("something follows its last line".to_owned()));
        }
        if self.head.is_none() {
            let head = head_of(line)?;
            self.hasher.update(line);
            self.head = Some(head.clone());
            return Ok(Line::Head(head));
        }
        if line.starts_with(b"{\"end\":") {
            return self.end(line);
        }
        let number = self.rows + 2;
        let row = serde_json::from_slice(line)
            .map_err(|error| damaged(format!("line {number} does not read: {error}")))?;
        self.hasher.update(line);
        self.rows += 1;
        Ok(Line::Row(row))
    }

    fn end(&mut self, line: &[u8]) -> Result<Line, BackupError> {
        let LastLine { end } = serde_json::from_slice(line)
            .map_err(|error| damaged(format!("its last line does not read: {error}")))?;
        if end.rows != self.rows {
            let detail = format!("it has {} rows, and its end says {}", self.rows, end.rows);
            return Err(damaged(detail));
        }
        if end.hash != self.hasher.finalize().to_hex().to_string() {
            let detail = "the hash at its end is not that of its content".to_owned();
            return Err(damaged(detail));
        }
        self.ended = true;
        Ok(Line::End)
    }
}

fn damaged(detail: String) -> BackupError {
    BackupError::Damaged(detail)
}

fn head_of(line: &[u8]) -> Result<BackupHead, BackupError> {
    /// What every form has.
    #[derive(Deserialize)]
    struct Form {
        weir_backup: u64,
    }
    let form: Form = serde_json::from_slice(line).map_err(|_other| BackupError::Foreign)?;
    match form.weir_backup {
        FORM => serde_json::from_slice(line)
            .map_err(|error| damaged(format!("its first line does not read: {error}"))),
        0 => Err(BackupError::Foreign),
        newer => Err(BackupError::Newer(newer)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn head() -> BackupHead {
        BackupHead {
            weir_backup: FORM,
            build: "0.1.0".to_owned(),
            made_at: 7,
            history: "h".to_owned(),
            revision: 3,
            pepper_id: "p".to_owned(),
            audit: AuditEnd { seq: 4, linked: 4, hash: AuditHash::START },
        }
    }

    fn row(name: &str) -> BackupRow {
        let row = json!({ "name": name, "note": "two\nlines" });
        BackupRow { table: "plan".to_owned(), row: row.as_object().unwrap().clone() }
    }

    fn file() -> Vec<u8> {
        let mut writer = Writer::default();
        let mut file = writer.head(&head());
        file.extend(writer.row(&row("a")));
        file.extend(writer.row(&row("b")));
        file.extend(writer.end());
        file
    }

    fn read(file: &[u8]) -> Result<(BackupHead, u64), BackupError> {
        let mut reader = Reader::default();
        reader.push(file)?;
        reader.finish()
    }

    #[test]
    fn what_was_written_is_read_in_pieces_of_any_size() {
        let file = file();
        for size in 1..=file.len() {
            let mut reader = Reader::default();
            let mut lines = Vec::new();
            for piece in file.chunks(size) {
                lines.extend(reader.push(piece).unwrap());
            }
            let expected =
                [Line::Head(head()), Line::Row(row("a")), Line::Row(row("b")), Line::End];
            assert_eq!(lines, expected, "pieces of {size}");
            assert_eq!(reader.finish().unwrap(), (head(), 2));
        }
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_refused() {
        let file = file();
        for length in 0..file.len() {
            assert!(read(&file[..length]).is_err(), "cut after {length} bytes");
        }
        let last = file[..file.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap();
        for place in 0..file.len() {
            let mut other = file.clone();
            other[place] ^= 0x01;
            let same = read(&other).is_ok_and(|read| read == (head(), 2));
            assert!(!same, "byte {place} of {} (the end begins at {last})", file.len());
        }
        assert_eq!(read(&file[..=last]), Err(BackupError::Cut(2)));
        let mut longer = file.clone();
        longer.extend(b"{}\n");
        assert!(matches!(read(&longer), Err(BackupError::Damaged(_))));
    }

    #[test]
    fn what_is_no_backup_or_a_later_one_is_called_so() {
        for foreign in ["", "\n", "[plan.pro]\nburst = 1\n", "{}\n", "{\"weir_backup\":0}\n"] {
            assert_eq!(read(foreign.as_bytes()), Err(BackupError::Foreign), "{foreign}");
        }
        assert_eq!(read(&vec![b'x'; LINE_BYTES_MAX + 1]), Err(BackupError::Foreign));
        let later = b"{\"weir_backup\":2,\"more\":true}\n";
        assert_eq!(read(later), Err(BackupError::Newer(2)));
    }
}
