//! The parser over made headers, cut ones, changed ones and noise.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A header of TCP, from `source` to somewhere, with extensions.
fn header(source: IpAddr, extensions: &[u8]) -> Vec<u8> {
    let (transport, addresses) = match source {
        IpAddr::V4(ip) => (0x11, [&ip.octets()[..], &[192, 0, 2, 9]].concat()),
        IpAddr::V6(ip) => (0x21, [&ip.octets()[..], &[9; 16]].concat()),
    };
    let block = [&addresses[..], &[0x30, 0x39, 0x01, 0xBB], extensions].concat();
    with(0x21, transport, &block)
}

fn with(command: u8, transport: u8, block: &[u8]) -> Vec<u8> {
    let length = u16::try_from(block.len()).unwrap().to_be_bytes();
    [&SIGNATURE[..], &[command, transport], &length, block].concat()
}

fn extension(kind: u8, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).unwrap().to_be_bytes();
    [&[kind][..], &length, value].concat()
}

/// The same header with a right checksum behind it.
fn summed(source: IpAddr, before: &[u8], behind: &[u8]) -> Vec<u8> {
    let place = extension(CHECKSUM, &[0; 4]);
    let mut header = header(source, &[before, &place, behind].concat());
    let stands_at = header.len() - behind.len() - 4;
    let sum = crc32c(&header, stands_at).to_be_bytes();
    header[stands_at..stands_at + 4].copy_from_slice(&sum);
    header
}

fn v4() -> IpAddr {
    IpAddr::from([198, 51, 100, 7])
}

#[test]
fn the_sum_is_the_known_one() {
    // The check value of CRC-32C; the four zeros lie outside.
    assert_eq!(crc32c(b"123456789", 100), 0xE306_9283);
}

#[test]
fn what_is_not_plain_is_refused() {
    let tcp4 = [0; 12];
    for (bytes, wrong) in [
        (b"GET / HTTP/1.1\r\n".to_vec(), Malformed::Signature),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n".to_vec(), Malformed::Signature),
        (b"\r\n\r\n\0\r\nQUIX".to_vec(), Malformed::Signature),
        (with(0x11, 0x11, &tcp4), Malformed::Command(0x11)),
        (with(0x22, 0x11, &tcp4), Malformed::Command(0x22)),
        (with(0x21, 0x00, &[]), Malformed::Transport(0x00)),
        (with(0x21, 0x12, &tcp4), Malformed::Transport(0x12)),
        (with(0x21, 0x22, &[0; 36]), Malformed::Transport(0x22)),
        (with(0x21, 0x31, &[0; 216]), Malformed::Transport(0x31)),
        (with(0x21, 0x11, &[0; 11]), Malformed::Length(11)),
        (with(0x21, 0x21, &[0; 35]), Malformed::Length(35)),
        (with(0x21, 0x11, &[0; HEADER_BYTES_MAX - 15]), Malformed::Length(4_081)),
        (with(0x20, 0x00, &[0; HEADER_BYTES_MAX - 15]), Malformed::Length(4_081)),
        (header(v4(), &[0x04]), Malformed::Extension),
        (header(v4(), &[0x04, 0, 2, 0]), Malformed::Extension),
        (header(v4(), &extension(CHECKSUM, &[0; 3])), Malformed::Checksum),
        (header(v4(), &extension(CHECKSUM, &[0; 4])), Malformed::Checksum),
    ] {
        assert_eq!(parse(&bytes), Err(wrong), "{bytes:?}");
    }
}

#[test]
fn a_balancer_that_speaks_for_itself_says_no_address() {
    for transport in [0x00, 0x11, 0x7F] {
        for block in [&[][..], &[1; 12], &[0xFF; 100]] {
            let parsed = parse(&with(0x20, transport, block));
            assert_eq!(parsed, Ok(Parsed::Whole(Told::Local)), "{transport} {block:?}");
        }
    }
}

#[tokio::test]
async fn nothing_behind_the_header_is_read() {
    let bytes = [header(v4(), &extension(0x04, &[0; 300])), b"GET / HTTP/1.1".to_vec()].concat();
    let mut io = &bytes[..];
    assert_eq!(read(&mut io).await.unwrap(), Told::Source(v4()));
    assert_eq!(io, b"GET / HTTP/1.1");
    let mut cut = &bytes[..40];
    assert!(matches!(read(&mut cut).await, Err(HeaderError::Ended(_))));
}

fn any_source() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from),]
}

/// Extensions of any kind but the checksum.
fn any_extensions() -> impl Strategy<Value = Vec<u8>> {
    let one = (4_u8.., vec(any::<u8>(), 0..40));
    vec(one.prop_map(|(kind, value)| extension(kind, &value)), 0..6).prop_map(|all| all.concat())
}

proptest! {
    #[test]
    fn what_was_written_is_what_is_read(
        source in any_source(),
        extensions in any_extensions(),
        behind in vec(any::<u8>(), 0..20),
    ) {
        for header in [header(source, &extensions), summed(source, &extensions, &extensions)] {
            let whole = Ok(Parsed::Whole(Told::Source(source)));
            prop_assert_eq!(parse(&header), whole);
            prop_assert_eq!(parse(&[&header[..], &behind].concat()), whole);
            for cut in 0..header.len() {
                match parse(&header[..cut]) {
                    Ok(Parsed::Needs(total)) => {
                        prop_assert!(cut < total && total <= header.len());
                    }
                    other => prop_assert!(false, "{cut} bytes: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn addresses_with_a_checksum_cannot_be_changed_unseen(
        source in any_source(),
        extensions in any_extensions(),
        at in any::<prop::sample::Index>(),
        flip in 1_u8..,
    ) {
        let mut header = summed(source, &extensions, &[]);
        let at = FIXED_BYTES + at.index(if source.is_ipv4() { 12 } else { 36 });
        header[at] ^= flip;
        prop_assert_eq!(parse(&header), Err(Malformed::Checksum));
    }

    #[test]
    fn noise_asks_for_no_more_than_the_bound_and_names_nobody(
        command in any::<u8>(),
        noise in vec(any::<u8>(), 0..120),
        signed in any::<bool>(),
    ) {
        let bytes =
            if signed { [&SIGNATURE[..], &[command], &noise].concat() } else { noise };
        match parse(&bytes) {
            Ok(Parsed::Needs(total)) => prop_assert!(total <= HEADER_BYTES_MAX),
            Ok(Parsed::Whole(Told::Source(_))) => prop_assert!(signed && command == 0x21),
            Ok(Parsed::Whole(Told::Local)) => prop_assert!(signed && command == 0x20),
            Err(_) => {}
        }
    }
}
