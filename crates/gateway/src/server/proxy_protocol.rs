//! PROXY protocol, version 2: what a balancer says about the connection that it passes on. The
//! parser is pure; reading takes not one byte more than the header has.
//!
//! Only the source's address is of interest. Whoever may say it chooses whose limit is used, so a
//! listener believes trusted peers alone, and everything but a whole, plain header is an error:
//! there is no guessing and no falling back to the peer's own address. Version 1 (text) is one of
//! those errors.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest header, with all its extensions; a longer one is refused by its length field.
pub(super) const HEADER_BYTES_MAX: usize = 4_096;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family, length.
const FIXED_BYTES: usize = 16;
/// Most headers are no longer: two IPv6 addresses, two ports.
const USUAL_BYTES: usize = FIXED_BYTES + 36;
/// The extension that holds a checksum of the whole header.
const CHECKSUM: u8 = 0x03;

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// The balancer speaks for itself, to see whether we live.
    Local,
    /// It passes on what comes from this address.
    Source(IpAddr),
}

/// How far a header got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parsed {
    /// It has at least so many bytes in all.
    Needs(usize),
    /// It is whole.
    Whole(Told),
}

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    /// It begins with something else.
    #[error("no PROXY protocol of version 2")]
    Signature,
    /// Another version, or a command that is none.
    #[error("version and command are {0:#04x}")]
    Command(u8),
    /// Neither TCP over IPv4 nor TCP over IPv6.
    #[error("the transport {0:#04x} is not supported")]
    Transport(u8),
    /// The length field exceeds the bound, or falls short of the addresses.
    #[error("a length of {0} does not fit")]
    Length(usize),
    /// The extensions do not add up to the length.
    #[error("an extension is cut off")]
    Extension,
    /// The checksum is of something else.
    #[error("the checksum is wrong")]
    Checksum,
}

/// Why a connection has no header.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeaderError {
    /// It is none.
    #[error("a malformed header")]
    Malformed(#[from] Malformed),
    /// The connection ended or failed before it was whole.
    #[error("no whole header")]
    Ended(#[from] io::Error),
}

/// Reads a header and nothing behind it. Put a bound in time on it.
pub(super) async fn read<T: AsyncRead + Unpin>(io: &mut T) -> Result<Told, HeaderError> {
    let mut header = Vec::with_capacity(USUAL_BYTES);
    loop {
        let missing = match parse(&header)? {
            Parsed::Whole(told) => return Ok(told),
            Parsed::Needs(total) => total.saturating_sub(header.len()),
        };
        let missing = u64::try_from(missing).unwrap_or(0);
        if (&mut *io).take(missing).read_buf(&mut header).await? == 0 {
            return Err(HeaderError::Ended(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}

/// Judges the beginning of a connection. Bytes behind the header are not looked at.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, Malformed> {
    if !bytes.iter().zip(&SIGNATURE).all(|(have, want)| have == want) {
        return Err(Malformed::Signature);
    }
    let Some((fixed, rest)) = bytes.split_first_chunk::<FIXED_BYTES>() else {
        return Ok(Parsed::Needs(FIXED_BYTES));
    };
    let [.., command, transport, high, low] = *fixed;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if HEADER_BYTES_MAX - FIXED_BYTES < length {
        return Err(Malformed::Length(length));
    }
    let local = match command {
        0x20 => true,
        0x21 => false,
        _ => return Err(Malformed::Command(command)),
    };
    if !local && !matches!(transport, 0x11 | 0x21) {
        return Err(Malformed::Transport(transport));
    }
    let Some(block) = rest.get(..length) else {
        return Ok(Parsed::Needs(FIXED_BYTES + length));
    };
    if local {
        return Ok(Parsed::Whole(Told::Local)); // whatever the block is, it is to be skipped
    }
    let addresses = if transport == 0x11 { ipv4(block) } else { ipv6(block) };
    let (source, extensions) = addresses.ok_or(Malformed::Length(length))?;
    if let Some(stated) = checksum(extensions)? {
        let header = [fixed.as_slice(), block].concat();
        let stands_at = header.len() - stated.before_end;
        if crc32c(&header, stands_at) != stated.sum {
            return Err(Malformed::Checksum);
        }
    }
    Ok(Parsed::Whole(Told::Source(source)))
}

/// Source, destination, two ports; then extensions.
fn ipv4(block: &[u8]) -> Option<(IpAddr, &[u8])> {
    let (addresses, extensions) = block.split_first_chunk::<12>()?;
    let source = addresses.first_chunk::<4>()?;
    Some((IpAddr::V4(Ipv4Addr::from(*source)), extensions))
}

fn ipv6(block: &[u8]) -> Option<(IpAddr, &[u8])> {
    let (addresses, extensions) = block.split_first_chunk::<36>()?;
    let source = addresses.first_chunk::<16>()?;
    Some((IpAddr::V6(Ipv6Addr::from(*source)), extensions))
}

struct Stated {
    sum: u32,
    /// From its first byte to the end of the header.
    before_end: usize,
}

/// Walks through the extensions, each a kind, a length and a value; the checksum, if one is there.
fn checksum(extensions: &[u8]) -> Result<Option<Stated>, Malformed> {
    let (mut rest, mut found) = (extensions, None);
    while let Some(([kind, high, low], behind)) = rest.split_first_chunk::<3>() {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let (value, next) = behind.split_at_checked(length).ok_or(Malformed::Extension)?;
        if *kind == CHECKSUM {
            let sum = value.try_into().map_err(|_other_length| Malformed::Checksum)?;
            found = Some(Stated { sum: u32::from_be_bytes(sum), before_end: behind.len() });
        }
        rest = next;
    }
    if rest.is_empty() { Ok(found) } else { Err(Malformed::Extension) }
}

/// CRC-32C, with zeros for the four bytes where the checksum stands.
fn crc32c(header: &[u8], stands_at: usize) -> u32 {
    let zeros = stands_at..stands_at + 4;
    let bytes = header.iter().enumerate();
    let bytes = bytes.map(|(at, byte)| if zeros.contains(&at) { 0 } else { *byte });
    let sum = bytes.fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _bit| {
            if sum & 1 == 0 { sum >> 1 } else { (sum >> 1) ^ 0x82F6_3B78 }
        })
    });
    !sum
}

#[cfg(test)]
mod tests;
