//! Short header values, put together on the stack: of each answer's limit fields only the value
//! itself is allocated, and no formatter is involved.

use http::HeaderValue;

/// Longest text: two limits with both their numbers at the largest take 118 bytes.
const BYTES_MAX: usize = 128;
/// Digits of the largest number.
const DIGITS_MAX: usize = 20;

/// A text that grows up to a bound; one that would exceed it is no text any more.
#[derive(Debug)]
pub(crate) struct Text {
    bytes: [u8; BYTES_MAX],
    length: usize,
    fits: bool,
}

impl Text {
    /// Nothing yet.
    pub(crate) fn new() -> Text {
        Text { bytes: [0; BYTES_MAX], length: 0, fits: true }
    }

    /// Whether there is nothing yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// With this behind it.
    pub(crate) fn word(self, word: &str) -> Text {
        self.append(word.as_bytes())
    }

    /// With this number behind it.
    pub(crate) fn number(self, number: u64) -> Text {
        let mut digits = [b'0'; DIGITS_MAX];
        let (mut left, mut first) = (number, DIGITS_MAX);
        for (place, digit) in digits.iter_mut().enumerate().rev() {
            // A remainder by ten is a digit.
            *digit += u8::try_from(left % 10).unwrap_or(0);
            (left, first) = (left / 10, place);
            if left == 0 {
                break;
            }
        }
        self.append(digits.get(first..).unwrap_or_default())
    }

    fn append(mut self, more: &[u8]) -> Text {
        let end = self.length + more.len();
        match self.bytes.get_mut(self.length..end) {
            Some(room) => {
                room.copy_from_slice(more);
                self.length = end;
            }
            None => self.fits = false,
        }
        self
    }

    /// As a header value.
    pub(crate) fn value(&self) -> Option<HeaderValue> {
        let text = self.bytes.get(..self.length).filter(|_| self.fits)?;
        HeaderValue::from_bytes(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_stand_one_behind_the_other() {
        for number in [0, 9, 10, 4_096, u64::MAX] {
            let text = Text::new().word("q=").number(number).word(";");
            assert_eq!(text.value().unwrap(), format!("q={number};").as_str());
        }
    }

    #[test]
    fn what_does_not_fit_is_no_value() {
        let full = Text::new().word(&"x".repeat(BYTES_MAX));
        assert!(full.value().is_some());
        assert!(full.word("y").value().is_none());
        assert!(Text::new().is_empty());
    }
}
