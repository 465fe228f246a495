//! The id of a request, told to its caller, its service and all records.

use http::HeaderValue;

/// 32 hexadecimal digits. Always our own: callers must not choose what records are found by.
pub(super) fn request_id() -> HeaderValue {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let mut random = fastrand::u128(..);
    let mut text = [0; 32];
    for place in &mut text {
        let digit = usize::try_from(random & 15).unwrap_or(0);
        *place = DIGITS.get(digit).copied().unwrap_or(b'0');
        random >>= 4;
    }
    HeaderValue::from_bytes(&text).expect("hexadecimal digits are visible ASCII")
}
